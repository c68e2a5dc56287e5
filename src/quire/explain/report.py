"""The answer of `quire explain` and `GET /explain`: a verdict, its causes, changes."""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.core.op_profile import ExpertBalance

Cause = Literal[
    # Requests and the KV cache
    "queueing", "adapter_seats", "preemption", "kv_cache_too_small", "failed_writes",
    "prefix_misses", "state_misses", "salted_prefixes", "shifted_prefixes",
    # Cores and the system
    "few_threads", "too_many_threads", "affinity", "cpu_quota", "low_priority", "busy_neighbour",
    "stolen_cpu", "stopped", "traced", "python_debugging", "slow_clock", "hot_card", "power_limit",
    "shared_card", "swapping", "memory_pressure", "open_files", "offload_reads", "slow_disk",
    "huge_pages_off", "remote_memory",
    "foreign_code", "blocked", "garbage_collection",
    # Kernels and types
    "wide_weights", "reference_ops", "python_ops", "forced_isa", "decoded_weights",
    "untuned_kernels", "slow_kernels", "cold_start",
    "memory_bandwidth", "compute",
    # Steps
    "dispatch_overhead", "idle_gaps", "rank_imbalance", "slow_stage", "slow_replica", "slow_link",
    "poor_drafts", "needless_ranks", "small_chunks", "long_prompts", "long_turns",
    # What requests ask for
    "encoder", "logprobs", "prompt_logprobs", "penalties", "token_edits", "structures", "adapters",
    "many_choices",
    # The front end
    "image_preparation", "tokenization", "detokenization", "http_overload", "tls", "scrapes",
    # How clients behave
    "aborted_requests", "refused_requests", "unmet_stops", "slow_client", "few_clients",
    # Verdicts without a window, and without a cause
    "starved", "none",
]  # fmt: skip
THROUGHPUT, ITL, START = "output tokens/s", "p99 inter-token latency", "speed of the start"
"""What a change improves."""
Bound = Literal["memory", "compute", "overhead"]
Value = bool | int | float | str | None
"""Of a field of `EngineArgs`."""


class Change(msgspec.Struct, frozen=True):
    """One flag to change, and its gain by the cost model."""

    flag: str
    """As typed: `--num-threads 2`."""
    why: str
    metric: str
    """`THROUGHPUT`, `ITL` or `START`."""
    estimated_gain: float
    """0.35 is 35 % more, if the other causes stay as they are; at most `Case.most_gain`. 0 is no
    figure: the change ends errors, or the window cannot tell its gain."""
    fields: dict[str, Value] = {}
    """The same as fields of `EngineArgs`; empty if no engine flag can change it."""
    uncertainty: float = 0.0
    """Half the range of the estimate, relative to it: 0.3 means ± 30 %."""
    at_least: bool = False
    """The range is so wide that `estimated_gain` is its lower end."""
    simulated: bool = False
    """The gain is from a replay of the recorded requests on the real scheduler."""


class Finding(msgspec.Struct, frozen=True):
    """A cause that was found."""

    cause: Cause
    text: str
    """One sentence with its figures."""
    share: float
    """Share of the window, 0 to 1, that the best change is expected to save."""
    fault: bool = True
    """A setting, a request or another program costs this time. Else it is a limit that a healthy
    engine has, too."""
    confidence: float = 1.0
    """Estimated probability, 0 to 1, that the cause is real."""


class OpLine(msgspec.Struct, frozen=True):
    """One operation of the model, the sum of its calls, against the machine's limits."""

    name: str
    module: str
    """Path in the model, without the layer's number."""
    share: float
    """Share of the time in all operations."""
    gb_s: float
    gflop_s: float
    intensity: float
    """Operations per byte moved."""
    bound: Bound
    """The nearer limit, or neither: `overhead`."""
    of_limit: float | None
    """Share of that limit reached, at most 1; None: unknown."""
    dtype: str = ""


class LimitsUsed(msgspec.Struct, frozen=True):
    """The machine's limits with the engine's threads."""

    bandwidth_bytes_s: float
    flops_s: dict[str, float]
    """By input type of the products."""
    source: Literal["measured", "seen"]
    """`seen`: the rate of the fastest operation in this window. Run `quire explain --measure` on an
    idle machine to make it `measured`."""
    stale: bool = False
    """Operations were faster than the measured limits allow: the machine was busy when they were
    measured, or caches hold the data."""


class Proof(msgspec.Struct, frozen=True):
    """A change that was measured: A is the engine as it is, B the changed one, in turns."""

    flag: str
    metric: str
    before: float
    after: float
    spread: float
    """Half the range of the repetitions' gains."""
    estimated_gain: float
    proven_gain: float
    repetitions: int
    at_least: bool = False
    """`estimated_gain` is the lower end of a wide range."""


class Report(msgspec.Struct, frozen=True):
    """The whole answer."""

    window_s: float
    split: dict[str, float]
    """Share of the window, 0 to 1, by the names of `metrics.times.PARTS`. The core's parts are
    shares of its time; the front end's, of its thread or its tokenizer processes. `queue` is
    missing: see `rates["waiting"]`."""
    verdict: Finding
    causes: list[Finding]
    """All causes found, the costliest first."""
    changes: list[Change]
    """At most three, the most promising first; empty if nothing is wrong."""
    ops: list[OpLine]
    """The costliest first; empty if the operations were not profiled."""
    limits: LimitsUsed | None
    experts: list[ExpertBalance] = []
    """How evenly each router chose; empty without experts, or if operations were not profiled."""
    notes: list[str] = []
    """Missing evidence, and its consequences."""
    offline: bool = False
    """One thread did everything; tokenizing and detokenizing are parts of its time."""
    rates: dict[str, float] = {}
    """Means over the window: output_tok_s, prompt_tok_s, steps_s, running, waiting, kv_share."""
    proofs: list[Proof] = []
    thread: dict[str, float] = {}
    """Shares of the window in which the core's thread ran, waited for a CPU, slept in its work, and
    had none; they add up to 1. Tokens come in proportion to the first. Empty if unknown."""
