"""Notices that a core which has work says nothing any more, or hangs in a part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICKS = 8
"""In the time allowed; a front end that was itself stopped has missed but one of them."""


class Watchdog:
    """Counts silent ticks while there is work; without, no timer runs.

    Args:
        seconds: of silence, until `stuck` is called; 0 is never.
        busy: whether there is work.
        hung: asked at each tick; true is as good as silence for so long.

    Attributes:
        silent: ticks since the last sign of life; who hears one sets it to 0.
    """

    def __init__(
        self,
        seconds: float,
        busy: Callable[[], bool],
        stuck: Callable[[], None],
        hung: Callable[[], bool] = lambda: False,
    ) -> None:
        self.silent = 0
        self._seconds = seconds
        self._busy = busy
        self._stuck = stuck
        self._hung = hung
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to watch, unless it does already: there is work."""
        if self._timer is None and self._seconds:
            self.silent = 0
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(self._seconds / TICKS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._busy():
            return
        self.silent += 1
        if self.silent > TICKS or self._hung():
            self.silent = 0
            self._stuck()
        self._schedule()
