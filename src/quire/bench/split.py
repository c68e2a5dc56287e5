"""Where the time of a measurement went, from the engine's counters before and after."""

from __future__ import annotations

import math
import re
from dataclasses import field, replace
from typing import TYPE_CHECKING

from quire.bench.results.report import Row
from quire.core.errors import QuireError
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.metrics.stats import EngineStats

_SAMPLE = re.compile(r"^(?P<name>[\w:]+)\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Reading:
    """An engine's counters after its latest step.

    Attributes:
        moment: end of that step, in seconds of the monotonic clock.
        seconds: seconds since the engine's start by names of `metrics.times.PARTS`.
        output_tokens: tokens since the engine's start.
        lags: upper bound in seconds → samples of the event loop's lag, cumulative.
        replicas: number of engines.
    """

    moment: float
    seconds: dict[str, float]
    output_tokens: float
    lags: dict[float, float] = field(default_factory=dict)
    replicas: int = 1

    def idle_until(self, moment: float) -> Reading:
        """Return the reading at `moment` of an engine that has had no work since this one."""
        idle = self.seconds["idle"] + moment - self.moment
        return replace(self, moment=moment, seconds={**self.seconds, "idle": idle})


@dataclass(frozen=True, slots=True)
class Split:
    """The difference of two readings.

    Attributes:
        shares: shares of the time between them by names of `metrics.times.PARTS`. The core's add up
            to 1; the front end runs in parallel; `queue` is the mean number of waiting requests.
    """

    shares: dict[str, float]
    output_tok_s: float

    @property
    def non_model_share(self) -> float:
        """Return the share of the time in which the core did not compute the model."""
        return 1.0 - self.shares["model"]

    def row(self) -> Row:
        return {
            "non_model_share": self.non_model_share,
            "output_tok_s": self.output_tok_s,
            "split": self.shares,
        }


def between(first: Reading, last: Reading) -> Split:
    """Return the split of the time from `first` to `last`.

    Raises:
        QuireError: no step ended between them.
    """
    wall = last.moment - first.moment
    if wall <= 0.0:
        raise QuireError("No step ended during the measurement.")
    shares = {name: (last.seconds[name] - spent) / wall for name, spent in first.seconds.items()}
    return Split(shares, (last.output_tokens - first.output_tokens) / wall)


def lag_ms(first: Reading, last: Reading) -> Row:
    """Return an upper bound of the event loop's p99 lag; empty without samples."""
    counts = {bound: last.lags[bound] - count for bound, count in first.lags.items()}
    total = counts.get(math.inf, 0.0)
    if not total:
        return {}
    finite = sorted(bound for bound in counts if bound < math.inf)
    within = (bound for bound in finite if counts[bound] >= 0.99 * total)
    return {"p99": 1e3 * next(within, finite[-1])}


def read_stats(stats: EngineStats) -> Reading:
    """Return the reading of an offline engine."""
    return Reading(stats.last_step, stats.seconds(), stats.generation_tokens)


def read_metrics(text: str) -> Reading | None:
    """Return the reading of a server from its `/metrics`; None if the server is not Quire.

    Of several replicas, the times are the first one's, and the tokens those of all. An engine that
    has had no step does not know the time.
    """
    moment, tokens = 0.0, 0.0
    seconds: dict[str, float] = {}
    lags: dict[float, float] = {}
    engines: dict[str, None] = {}
    for sample in _SAMPLE.finditer(text):
        labels, value = dict(_LABEL.findall(sample["labels"])), sample["value"]
        if "engine" in labels:
            engines[labels["engine"]] = None
        if sample["name"] == "vllm:generation_tokens_total":
            tokens += float(value)
        if labels.get("engine") != next(iter(engines), None):
            continue
        match sample["name"]:
            case "quire:last_step_seconds":
                moment = float(value)
            case "quire:time_seconds_total":
                seconds[labels["part"]] = float(value)
            case "quire:event_loop_lag_seconds_bucket":
                lags[float(labels["le"])] = float(value)
    return Reading(moment, seconds, tokens, lags, len(engines)) if seconds else None
