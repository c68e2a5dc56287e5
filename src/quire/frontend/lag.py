"""The lag of an event loop: how late a timer fires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.metrics.histogram import Histogram

INTERVAL = 0.05
"""Seconds between two samples."""


class LoopLag:
    """Samples the lag of the running event loop into a histogram while there is work.

    Args:
        busy: returns whether there is work. Without work no timer runs, so an idle server sleeps.
    """

    def __init__(self, histogram: Histogram, busy: Callable[[], bool]) -> None:
        self._histogram = histogram
        self._busy = busy
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer, unless it runs already."""
        if self._timer is None:
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        due = self._loop.time() + INTERVAL
        self._timer = self._loop.call_at(due, self._sample, due)

    def _sample(self, due: float) -> None:
        self._timer = None
        self._histogram.observe(max(0.0, self._loop.time() - due))
        if self._busy():
            self._schedule()
