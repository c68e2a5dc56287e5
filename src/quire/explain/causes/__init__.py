"""One function per cause: evidence in, a suspect or None out."""

from __future__ import annotations

from collections.abc import Callable

from quire.explain.causes import (
    cache,
    card,
    clients,
    cores,
    drafts,
    front,
    images,
    kernels,
    machine,
    requests,
    stages,
    steps,
    system,
)
from quire.explain.causes.case import Case, Suspect

CAUSES: tuple[Callable[[Case], Suspect | None], ...] = (
    front.queueing,
    requests.adapter_seats,
    cache.preemption,
    cache.kv_cache_too_small,
    cache.prefix_misses,
    requests.salted_prefixes,
    requests.shifted_prefixes,
    cores.few_threads,
    cores.too_many_threads,
    cores.affinity,
    cores.cpu_quota,
    cores.low_priority,
    cores.busy_neighbour,
    cores.stolen_cpu,
    system.stopped,
    system.traced,
    system.python_debugging,
    system.slow_clock,
    card.hot_card,
    card.power_limit,
    card.shared_card,
    system.swapping,
    system.memory_pressure,
    system.open_files,
    system.offload_reads,
    system.slow_disk,
    system.huge_pages_off,
    system.remote_memory,
    machine.wide_weights,
    kernels.reference_ops,
    kernels.python_ops,
    kernels.forced_isa,
    kernels.decoded_weights,
    machine.memory_bandwidth,
    machine.compute,
    steps.dispatch_overhead,
    steps.idle_gaps,
    steps.rank_imbalance,
    stages.slow_stage,
    stages.slow_replica,
    stages.slow_link,
    drafts.poor_drafts,
    steps.needless_ranks,
    steps.small_chunks,
    steps.long_prompts,
    steps.long_turns,
    images.encoder,
    requests.logprobs,
    requests.prompt_logprobs,
    requests.penalties,
    requests.token_edits,
    requests.structures,
    requests.adapters,
    clients.many_choices,
    images.image_preparation,
    front.tokenization,
    front.detokenization,
    front.http_overload,
    front.tls,
    front.scrapes,
    clients.aborted_requests,
    clients.refused_requests,
    clients.unmet_stops,
    clients.slow_client,
    clients.few_clients,
)
"""All causes; of two with the same kind and share, the first stays the first."""

ON_CPUS = frozenset(
    {
        cores.few_threads, cores.too_many_threads, cores.affinity, system.slow_clock,
        system.huge_pages_off, system.remote_memory, kernels.forced_isa,
    }
)  # fmt: skip
"""Causes that slow a model only if CPUs compute it."""

WITHOUT_STEPS: tuple[Callable[[Case], Suspect | None], ...] = (
    front.queueing,
    cores.cpu_quota,
    cores.busy_neighbour,
    system.stopped,
    system.traced,
    system.python_debugging,
    system.swapping,
    system.memory_pressure,
    system.open_files,
    images.image_preparation,
    front.tokenization,
    front.http_overload,
    front.tls,
    front.scrapes,
    clients.aborted_requests,
    clients.refused_requests,
)
"""Causes that a window without a step can prove: the core was starved, or got no requests."""
