"""Detects a core that has work but is silent, or that hangs in native code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICKS = 16
"""Ticks in the allowed time; the first is a part of one. A front end that was stopped itself has
missed only one."""


class Watchdog:
    """Counts silent ticks while there is work. Without work, no timer runs.

    Args:
        seconds: silence after which `stuck` is called; 0 means never.
        busy: returns whether there is work.
        stuck: called for a silent or hung core.
        hung: asked at each tick; True counts as `seconds` of silence.

    Attributes:
        silent: ticks since the core's last message; the receiver of messages sets it to 0.
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
        """Start the timer, if it does not run; call this when there is work."""
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
        if self.silent >= TICKS or self._hung():
            self.silent = 0
            self._stuck()
        self._schedule()
