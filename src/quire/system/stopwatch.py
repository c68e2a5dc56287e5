"""Measures a thread's time in named parts."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Divides time into named parts without gaps, so that they add up to the total.

    Args:
        clock: returns seconds on a monotonic clock.

    Attributes:
        seconds: name → total time, in the order of the first laps.
    """

    __slots__ = ("_clock", "_last", "seconds")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._last = clock()

    def lap(self, name: str) -> None:
        """Add the time since the last lap to `name`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + self.split()

    def split(self) -> float:
        """Return the seconds since the last lap, and start a new lap."""
        last, self._last = self._last, self._clock()
        return self._last - last

    def add(self, name: str, seconds: float) -> None:
        """Add time that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
