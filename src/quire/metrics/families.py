"""Metrics with their values, and Prometheus' text format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal, NamedTuple

from quire.system.records import dataclass

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Sample(NamedTuple):
    """One value; `name` is the metric's, with a suffix such as "_total"."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(slots=True)
class Family:
    """A metric and its samples.

    Attributes:
        name: without the suffix "_total" of a counter; letters, digits, "_" and ":".
        text: one line that explains it.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    samples: list[Sample] = field(default_factory=list)

    @property
    def exposed_name(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Add a value of a counter or a gauge."""
        self.samples.append(Sample(self.exposed_name, labels, value))

    def add_histogram(
        self, labels: Mapping[str, str], bounds: Iterable[float], counts: Sequence[int], sum_: float
    ) -> None:
        """Add a histogram.

        Args:
            bounds: largest value of each bucket but the last, which has none.
            counts: values in each bucket.
            sum_: of all values.
        """
        total = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            total += count
            at_most = {**labels, "le": _number(bound)}
            self.samples.append(Sample(f"{self.name}_bucket", at_most, total))
        self.samples.append(Sample(f"{self.name}_count", labels, total))
        self.samples.append(Sample(f"{self.name}_sum", labels, sum_))


def exposition(families: Iterable[Family]) -> bytes:
    """Return Prometheus' text format, version 1.0.0."""
    return "".join(line for family in families for line in _lines(family)).encode()


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.exposed_name} {family.text}\n"
    yield f"# TYPE {family.exposed_name} {family.kind}\n"
    for name, labels, value in family.samples:
        pairs = ",".join(f'{label}="{_escaped(labels[label])}"' for label in sorted(labels))
        yield f"{name}{{{pairs}}} {_number(value)}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))
