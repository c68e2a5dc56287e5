"""A virtual clock: time passes only when it is advanced."""

from __future__ import annotations


class VirtualClock:
    """Seconds since the simulation began; call the clock to read them."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0.0, "time does not run backwards"
        self._now += seconds
