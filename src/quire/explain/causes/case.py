"""The input and output of each cause."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from quire.core.config import EngineConfig
from quire.explain.bounds import gain_of
from quire.explain.estimate import Estimator
from quire.explain.evidence import CORE, FRONT, QUIET, Evidence, Window
from quire.explain.host import HostUse
from quire.explain.replicas import mean_replica
from quire.explain.report import ITL, THROUGHPUT, Cause, Change, Finding, LimitsUsed, OpLine, Value
from quire.explain.roofline import STALE, limits_used, op_lines
from quire.explain.surroundings import Surroundings
from quire.resolve.arguments import EngineArgs
from quire.system.records import dataclass

WORTH = 0.05
"""Causes that cost a smaller share of the time are not reported."""
LEAST_GAIN = 0.02
"""Changes that gain less are not proposed."""
FEW_SEATS = 8
"""Sequences of a batch that is too small wherever requests wait."""
FEW_CLIENTS = 2
"""Sequences at a time that are too few to share the reading of weights, or a step's own work."""
LATEST = 2.0
"""Time before the latest of a hundred tokens in a healthy engine, relative to the mean."""
TURNS = 2.0
"""A request is in turn at the core, the API process and its client. Of so many requests, n keep all
three busy for n / (n + 2) of the time (balanced job bounds of closed networks)."""
MULTI_STEP = 8
"""The advised `--num-scheduler-steps`; more would only delay new requests."""

SCHEDULING = frozenset(
    {
        "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override",
        "kv_cache_memory_bytes", "num_scheduler_steps", "async_scheduling",
        "enable_prefix_caching", "kv_offloading_size", "tokenizer_pool_size",
    }
)  # fmt: skip
"""Fields of `EngineArgs` that change only what steps contain. `whatif` simulates them."""

CACHING = frozenset({"enable_prefix_caching", "kv_offloading_size"})
"""Those of them that let prompts find what earlier ones computed."""


class Kind(IntEnum):
    """What counts prove ranks above estimates, and these above limits of the machine."""

    PROVEN = 0
    """Settings or counts prove it: seats against waiting requests, threads against cores."""
    WASTE = 1
    """Estimated from times."""
    CLIENTS = 2
    """Counts prove it, but it is the clients'."""
    START = 3
    """It costs each start time, and the running engine none."""
    NEIGHBOUR = 4
    """Others use the machine, which hides no cause of the engine's own."""
    DEMAND = 5
    """Counts prove that too little is asked at a time: the engine loses nothing."""
    LIMIT = 6
    """The machine can do no more."""
    ELSEWHERE = 7
    """The engine loses no time."""

    @property
    def place(self) -> int:
        """Return the place of such findings; a neighbour and few clients share one."""
        return Kind.NEIGHBOUR if self is Kind.DEMAND else self

    @property
    def fault(self) -> bool:
        """Return whether a healthy engine has no such finding."""
        return self < Kind.DEMAND and self is not Kind.START


CONFIDENCE = {
    Kind.PROVEN: 0.95,
    Kind.WASTE: 0.75,
    Kind.CLIENTS: 0.9,
    Kind.START: 0.95,
    Kind.NEIGHBOUR: 0.9,
    Kind.DEMAND: 0.9,
    Kind.LIMIT: 0.8,
    Kind.ELSEWHERE: 0.8,
}
"""Of a finding in a window with enough steps, on a quiet machine."""


@dataclass(frozen=True)
class Suspect:
    """What a cause found, and its changes, the safest first.

    Attributes:
        floor: share that settings and counts prove, whatever the first change is expected to save.
        cause: its name; `analyse` sets it.
        confidence: relative to `CONFIDENCE`.
    """

    text: str
    share: float
    changes: list[Change]
    kind: Kind = Kind.PROVEN
    floor: float = 0.0
    cause: Cause = "none"
    confidence: float = 1.0

    @property
    def finding(self) -> Finding:
        confidence = round(CONFIDENCE[self.kind] * self.confidence, 2)
        return Finding(self.cause, self.text, self.share, self.kind.fault, confidence)


@dataclass(frozen=True)
class Case:
    """The evidence, and values that several causes need."""

    evidence: Evidence
    estimate: Estimator
    limits: LimitsUsed | None
    lines: list[OpLine]

    @property
    def window(self) -> Window:
        return self.evidence.window

    @property
    def args(self) -> EngineArgs:
        return self.evidence.args

    @property
    def config(self) -> EngineConfig:
        return self.evidence.config

    @property
    def host(self) -> HostUse | None:
        return self.evidence.host

    @property
    def seats(self) -> int:
        """Return the number of sequences that a batch takes."""
        return self.config.scheduler.max_num_seqs

    def seating(self, wanted: int) -> dict[str, Value]:
        """Return fields of `EngineArgs` for so many sequences; a step needs a token for each."""
        given = self.args.max_num_batched_tokens
        more = {} if given is None or given >= wanted else {"max_num_batched_tokens": wanted}
        return {"max_num_seqs": wanted, **more}

    @property
    def around(self) -> Surroundings:
        """Return the system around the engine; all figures are 0 if it is unknown."""
        return self.evidence.surroundings or Surroundings()

    @property
    def model(self) -> float:
        """Return the share of the window in which the model computed."""
        return self.window.share("model")

    @property
    def on_device(self) -> bool:
        """Return whether a GPU computes the model, and the host only submits its work."""
        return self.evidence.on_device

    @property
    def waited(self) -> float:
        """Return the share of the time that a thread of the engine waited for a core."""
        return self.evidence.waited

    @property
    def not_running(self) -> float:
        """Return the share of the window in which the core had work and its thread did not run."""
        host = self.host
        if host is None or not host.workers:
            return self.waited
        ran = statistics.fmean(worker.ran for worker in host.workers) / host.seconds
        return max(0.0, 1.0 - self.window.share("idle") - ran)

    @property
    def lost_to_others(self) -> float:
        """Return the share of the window that other processes than clients take from the threads.

        These wait for the front end and clients, too, by which they use the cores.
        """
        w, host, others = self.window, self.host, self.evidence.others
        mine = w.share(*FRONT) + (0.0 if host is None else host.clients)
        return (1.0 - w.share("idle")) * self.waited * others / max(1e-9, others + mine)

    def if_quiet(self, saved: float) -> float:
        """Return the share that other threads or processes save; beside other programs 0.0, which
        is no figure: what they get there depends on these programs."""
        return saved if self.evidence.others <= QUIET else 0.0

    def cores_of(self, threads: float) -> float:
        """Return the cores' worth of work of so many threads beside other processes than clients.

        Beyond the cores, all take turns. An operation ends with its last thread, so each thread
        waits for its own turn and for those of the others.
        """
        e = self.evidence
        others = max(0.0, e.others - QUIET) / len(e.args.replicas)
        turn = min(1.0, max(e.cores, 1) / max(1e-9, threads + others))
        return threads * turn * turn

    def most_gain(self, metric: str = THROUGHPUT) -> float:
        """Return the largest gain that the window can show.

        Of n computed tokens, none is known to take a smaller share of the time than 1 / (n + 2),
        by the rule of succession. The tokens that came out also need their products. The latest of
        a hundred tokens takes at least `LATEST` times the mean, and at most a hundred times: it
        alone is a hundredth of the sum (of fewer tokens, a larger part).
        """
        w = self.window
        if metric == ITL:
            part = 1.0 / min(100, max(1, w.computed_tokens))
            mean = max(w.running / max(1e-9, w.output_tok_s), w.itl_p99 * part)
            return max(0.0, w.itl_p99 / max(1e-9, LATEST * mean) - 1.0)
        least = max(1.0 / (w.computed_tokens + 2), self.estimate.needed_share())
        return gain_of(1.0 - least)

    def within_cores(self, gain: float, *, simulated: bool = False) -> float:
        """Return at most the gain that the cores allow: what remains of the core's work needs them,
        and so do the front end and clients on this machine.

        Args:
            simulated: a replay knows the queues, and that fewer steps are less of all of the
                core's work. Else a change saves the model's time alone.
        """
        w, e = self.window, self.evidence
        if e.offline or self.on_device or len(e.args.replicas) > 1:
            return gain
        idle = w.share("idle")
        saved = max(0.0, saving(gain) - idle)
        threads = min(e.config.num_threads, e.cores)
        core = max(1e-9, w.share(*CORE) - idle)
        rest = max(0.0, core - self.model)  # in one thread
        others = w.share(*FRONT) + (0.0 if e.host is None else e.host.clients)
        now = max(threads * self.model + rest + others, 1e-9)
        if simulated:
            after = (threads * self.model + rest) * max(0.0, 1.0 - saved / core)
        else:
            after = threads * max(0.0, self.model - saved) + rest
        clients = max(1.0, w.running + w.waiting)
        # A change that only fills idle time leaves the queues as they are.
        turns = 0.0 if simulated or not saved else TURNS
        kept = e.cores * clients / (clients + turns)
        return min(gain, max(kept, now) / max(after + others, 1e-9) - 1.0)

    def usual(self, threads: float | None = None) -> float:
        """Return the usual time of the model with native kernels, relative to the observed time.

        All threads are on the cores that others leave.
        """
        wanted = self.evidence.config.num_threads if threads is None else threads
        return self.estimate.usual_ratio(self.cores_of(wanted))

    def saved(self, ratio: float) -> float:
        """Return the share of the window that is saved if the model takes `ratio` of its time."""
        return self.model * (1.0 - ratio)


def open_case(evidence: Evidence) -> Case:
    """Return the case of an engine; of several replicas, that of the mean one."""
    evidence = mean_replica(evidence)
    limits, estimate = limits_used(evidence), Estimator(evidence)
    lines = op_lines(evidence.ops, limits)
    if limits is not None and not lines and estimate.of_limit()[1] > STALE:
        limits = msgspec.structs.replace(limits, stale=True)
    return Case(evidence, estimate, limits, lines)


def advice(what: str, why: str, saved: float = 0.0, **fields: Value) -> Change:
    """Return a change in words that saves this share of the window's time, with the fields of
    `EngineArgs` that it sets."""
    return Change(what, why, THROUGHPUT, gain_of(saved), fields)


def setting(why: str, saved: float, metric: str = THROUGHPUT, /, **fields: Value) -> Change:
    """Return other values of fields of `EngineArgs`, as flags; None leaves one out."""
    flags = (spelled(name, value) for name, value in fields.items() if value is not None)
    return Change(" ".join(flags), why, metric, gain_of(saved), fields)


def spelled(name: str, value: float | str) -> str:
    """Return a field of `EngineArgs` as a flag."""
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-")
    if isinstance(value, int) and name.endswith("_bytes"):
        gib, rest = divmod(value, 2**30)
        value = f"{value // 2**20}MiB" if rest else f"{gib}GiB"
    return f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}"


def schedules(change: Change) -> bool:
    """Return whether a change can be simulated; see `SCHEDULING`.

    How streams share the time with prompts decides how late tokens are, not how many there are.
    """
    fields = set(change.fields) - ({"max_itl_stretch"} if change.metric == ITL else set())
    return bool(change.fields) and fields <= SCHEDULING


def saving(gain: float) -> float:
    """Return the share of the time that a gain in speed saves."""
    return gain / (1.0 + gain)


def useful(changes: Sequence[Change], floor: float = 0.0) -> list[Change]:
    """Return the changes that gain something; with a floor also the first, without a figure."""
    return [
        c if c.estimated_gain > LEAST_GAIN else msgspec.structs.replace(c, estimated_gain=0.0)
        for n, c in enumerate(changes)
        if c.estimated_gain > LEAST_GAIN or (floor and not n)
    ]


def small_batch(w: Window) -> float:
    """Return a floor if requests wait although few sequences run.

    A larger batch ends the wait, even if no more tokens are computed per second.
    """
    return WORTH if w.running <= FEW_SEATS and w.waiting >= 0.5 else 0.0


def suspect(
    text: str, share: float, *changes: Change, kind: Kind = Kind.PROVEN, floor: float = 0.0
) -> Suspect | None:
    """Return a finding, unless it is too small; one that loses no time has any size.

    Args:
        text: a sentence with its figures.
        share: of the window, that the best change is expected to save.
    """
    share = min(1.0, max(share, floor))
    if not (share >= WORTH or kind is Kind.ELSEWHERE):
        return None
    return Suspect(text, share, useful(changes, floor), kind, floor)
