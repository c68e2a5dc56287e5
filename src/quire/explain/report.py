"""What `quire explain` and `GET /explain` answer: a verdict, its evidence, what to change."""

from __future__ import annotations

from typing import Literal

import msgspec

Cause = Literal[
    "dispatch_overhead",
    "memory_bandwidth",
    "compute",
    "idle_gaps",
    "rank_imbalance",
    "queueing",
    "preemption",
    "kv_cache_too_small",
    "prefix_misses",
    "tokenization",
    "slow_client",
    "few_threads",
    "wide_weights",
    "busy_neighbour",
    "none",
]
Bound = Literal["memory", "compute", "overhead"]


class Change(msgspec.Struct, frozen=True):
    """One flag to change, and what the cost model expects of it."""

    flag: str
    """As it would be typed: `--num-threads 2`."""
    why: str
    metric: str
    """What gains: "output tokens/s", or "requests/s"."""
    estimated_gain: float
    """0.35 is 35 % more, if the other causes stay as they are; at most 19 (`bounds.MOST_SAVED`)."""
    fields: dict[str, bool | int | float | str | None] = {}
    """The same as fields of `EngineArgs`; empty where no engine flag can change it."""


class Finding(msgspec.Struct, frozen=True):
    """A cause that was found."""

    cause: Cause
    text: str
    """One sentence, with the figures it rests on."""
    share: float
    """Of the window, from 0 to 1: the time that its best change is expected to save."""
    evidence: dict[str, float | int | str] = {}


class OpLine(msgspec.Struct, frozen=True):
    """One operation of the model, all its calls together, against the machine's limits."""

    name: str
    module: str
    """Where in the model, without the layer's number."""
    share: float
    """Of the time in all operations."""
    gb_s: float
    gflop_s: float
    intensity: float
    """Operations a byte that has to move."""
    bound: Bound
    """The nearer limit, or neither: `overhead`."""
    of_limit: float | None
    """Share of that limit reached, at most 1; None: unknown."""
    dtype: str = ""


class LimitsUsed(msgspec.Struct, frozen=True):
    """What the machine can do with the engine's threads."""

    bandwidth_bytes_s: float
    flops_s: dict[str, float]
    """By the type of the products' inputs."""
    source: Literal["measured", "seen"]
    """`seen`: no more than the fastest operation of this window; `quire explain --measure` on an
    idle machine makes it `measured`."""
    stale: bool = False
    """Operations were faster than the measured limits allow: these were measured on a busy machine,
    or caches hold what the operations read."""


class Proof(msgspec.Struct, frozen=True):
    """A change that was tried: A is the engine as it is, B the changed one, in turns."""

    flag: str
    metric: str
    before: float
    after: float
    spread: float
    """Half the range of the repetitions' gains."""
    estimated_gain: float
    proven_gain: float
    repetitions: int


class Report(msgspec.Struct, frozen=True):
    """The whole answer."""

    window_s: float
    split: dict[str, float]
    """Share of the window by the names of `metrics.times.PARTS`, from 0 to 1: of the core's time,
    or, for the front end, of the time of its thread or its tokenizer processes. `queue` is not
    among them: see `rates["waiting"]`."""
    verdict: Finding
    causes: list[Finding]
    """All that were found, the costliest first."""
    changes: list[Change]
    """One to three, the most promising first; none where nothing is wrong."""
    ops: list[OpLine]
    """The costliest first; empty where the model's operations were not profiled."""
    limits: LimitsUsed | None
    notes: list[str] = []
    """What was not known, and so not looked at."""
    offline: bool = False
    """One thread did all, so that tokenizing and detokenizing are parts of its time."""
    rates: dict[str, float] = {}
    """What the engine did meanwhile: output_tok_s, prompt_tok_s, steps_s, running, waiting,
    kv_share."""
    proofs: list[Proof] = []
