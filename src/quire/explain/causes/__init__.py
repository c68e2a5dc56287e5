"""One function per cause: evidence in, a suspect or None out."""

from __future__ import annotations

from collections.abc import Callable

from quire.explain.causes import cache, cores, front, kernels, machine, requests, steps, system
from quire.explain.causes.case import Case, Suspect

CAUSES: tuple[Callable[[Case], Suspect | None], ...] = (
    front.queueing,
    requests.adapter_seats,
    cache.kv_cache_too_small,
    cache.preemption,
    cache.prefix_misses,
    requests.salted_prefixes,
    requests.shifted_prefixes,
    cores.few_threads,
    cores.too_many_threads,
    cores.affinity,
    cores.cpu_quota,
    cores.busy_neighbour,
    cores.stolen_cpu,
    system.stopped,
    system.slow_clock,
    system.swapping,
    system.offload_reads,
    system.slow_disk,
    system.huge_pages_off,
    system.remote_memory,
    machine.wide_weights,
    kernels.reference_ops,
    kernels.python_ops,
    kernels.forced_isa,
    machine.memory_bandwidth,
    machine.compute,
    steps.dispatch_overhead,
    steps.idle_gaps,
    steps.rank_imbalance,
    steps.needless_ranks,
    steps.small_chunks,
    steps.long_prompts,
    requests.logprobs,
    requests.prompt_logprobs,
    requests.penalties,
    requests.token_edits,
    requests.structures,
    requests.adapters,
    requests.many_choices,
    front.tokenization,
    front.detokenization,
    front.http_overload,
    front.tls,
    front.scrapes,
    front.slow_client,
)
