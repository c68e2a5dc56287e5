"""Where a thread's time goes, in named pieces that leave nothing out."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Cuts time into named pieces that touch, so that they add up to the whole.

    Args:
        clock: seconds on a monotonic clock.

    Attributes:
        seconds: in all pieces of each name, in the order in which they were first lapped.
    """

    __slots__ = ("_clock", "_last", "seconds")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._last = clock()

    def lap(self, name: str) -> None:
        """Call the time since the last lap `name`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + self.split()

    def split(self) -> float:
        """The seconds since the last lap, which ends here without a name."""
        last, self._last = self._last, self._clock()
        return self._last - last

    def add(self, name: str, seconds: float) -> None:
        """Time that was taken elsewhere, or is known only now."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
