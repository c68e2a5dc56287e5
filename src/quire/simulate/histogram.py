"""Percentiles of any number of durations in a fixed amount of memory."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

SMALLEST = 1e-6
LARGEST = 1e6
RESOLUTION = 1.004
"""Ratio of a bin's upper to its lower end; percentiles are exact to 0.2 %."""


class Histogram:
    """Counts of durations in bins of equal ratio; one bin for all below a microsecond."""

    def __init__(self) -> None:
        size = math.ceil(math.log(LARGEST / SMALLEST) / math.log(RESOLUTION)) + 2
        self.counts = np.zeros(size, dtype=np.int64)

    def add(self, seconds: NDArray[np.float64]) -> None:
        steps = np.log(np.clip(seconds, SMALLEST, LARGEST) / SMALLEST) / math.log(RESOLUTION)
        np.add.at(self.counts, steps.astype(np.int64), 1)

    def percentile(self, share: float) -> float:
        """Return the value below which `share` (0 to 1) of all lie; 0.0 if there are none."""
        total = int(self.counts.sum())
        if not total:
            return 0.0
        index = int(np.searchsorted(np.cumsum(self.counts), max(1.0, share * total)))
        return float(SMALLEST * RESOLUTION ** (index + 0.5))
