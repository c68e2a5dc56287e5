"""Histograms since the start, and percentiles of the last minute."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

WINDOW = 60.0
"""Seconds that `RecentLatencies` looks back."""
MARK_INTERVAL = 5.0
"""Seconds between two marks, while there is work."""


class Histogram:
    """Counts of observations per bucket; a bucket's bound is its largest value."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """One count per bound, not cumulative, and one for values above the last bound."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class TimedHistogram(Histogram):
    """A histogram of steps by tokens. Each bucket sums tokens, model seconds and other seconds."""

    __slots__ = ("rest", "seconds", "sums")

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__(bounds)
        self.sums, self.seconds, self.rest = ([0.0] * len(self.counts) for _ in range(3))

    def add(self, value: float, seconds: float, rest: float) -> None:
        """Count a step's tokens, and add the seconds of the model and of the core's other work."""
        self.observe(value)
        bucket = bisect_left(self.bounds, value)
        self.sums[bucket] += value
        self.seconds[bucket] += max(0.0, seconds)
        self.rest[bucket] += max(0.0, rest)


def quantile(q: float, bounds: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the value below which a share `q` of the observations lies; None if there are none.

    As in Prometheus' `histogram_quantile`, the observations of a bucket are assumed to lie evenly
    between its bounds. The first bucket begins at 0. Above the last bound, this bound is returned.
    """
    rank, seen = q * sum(counts), 0
    for i, count in enumerate(counts):
        if count and seen + count >= rank:
            if i == len(bounds):
                return bounds[-1]
            low = bounds[i - 1] if i else 0.0
            return low + (bounds[i] - low) * (rank - seen) / count
        seen += count
    return None


class Percentiles(msgspec.Struct):
    """Percentiles of `count` observations, in their unit; None if there are none."""

    p50: float | None
    p90: float | None
    p99: float | None
    count: int


class RecentLatencies:
    """Percentiles of the last minute, from marks of earlier counts."""

    def __init__(self, histograms: Mapping[str, Histogram]) -> None:
        self._histograms = histograms
        self._marks: deque[tuple[float, dict[str, list[int]]]] = deque()
        self._due = 0.0

    def begin_step(self, now: float) -> None:
        """Call this before a step's observations; usually it costs one comparison."""
        if now < self._due:
            return
        while self._marks and self._marks[0][0] <= now - WINDOW:
            self._marks.popleft()
        self._marks.append((now, {name: h.counts.copy() for name, h in self._histograms.items()}))
        self._due = now + MARK_INTERVAL

    def percentiles(self, now: float) -> dict[str, Percentiles]:
        """Return percentiles by name, over the 55 to 60 seconds before `now`."""
        marks = (counts for moment, counts in self._marks if moment > now - WINDOW)
        base = next(marks, None)
        found = {}
        for name, histogram in self._histograms.items():
            before = histogram.counts if base is None else base[name]
            counts = [n - b for n, b in zip(histogram.counts, before, strict=True)]
            p50, p90, p99 = (quantile(q, histogram.bounds, counts) for q in (0.5, 0.9, 0.99))
            found[name] = Percentiles(p50, p90, p99, sum(counts))
        return found
