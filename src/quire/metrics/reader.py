"""The metrics of an engine as Python objects, as in `GET /metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from quire.metrics.families import Family
from quire.metrics.prometheus import MetricsCollector
from quire.metrics.stats import EngineStats
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One number or a group of them, with labels."""

    name: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """A count since the start."""

    value: float


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """A current value."""

    value: float


@dataclass(frozen=True, slots=True)
class Vector(Metric):
    """Several counts in order; Quire has none so far."""

    values: list[float]


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """Observations by size: `buckets` counts those up to each bound, which is a text."""

    count: int
    sum: float
    buckets: dict[str, int] = field(default_factory=dict)


def read_metrics(stats: EngineStats, model_name: str) -> list[Metric]:
    """Return all metrics of an engine, under vLLM's names; counters' without "_total"."""
    families = MetricsCollector(stats, model_name).collect()
    return [metric for family in families for metric in _metrics(family)]


def _metrics(family: Family) -> Iterable[Metric]:
    if family.kind == "histogram":
        yield from _histograms(family)
        return
    kind = Counter if family.kind == "counter" else Gauge
    for sample in family.samples:
        yield kind(family.name, dict(sample.labels), sample.value)


def _histograms(family: Family) -> Iterable[Histogram]:
    """Yield a family's histograms; the sum is the last sample of each."""
    buckets: dict[str, int] = {}
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            buckets[sample.labels["le"]] = int(sample.value)
        elif sample.name.endswith("_sum"):
            labels, count = dict(sample.labels), buckets.get("+Inf", 0)
            yield Histogram(family.name, labels, count, sample.value, buckets)
            buckets = {}
