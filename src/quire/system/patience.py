"""Time limits that a process does not exceed because it was stopped itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TICKS = 16
"""Timers of a limit, one after the other. A process that was stopped, or whose machine was
suspended, has missed one of them."""


@asynccontextmanager
async def patient_timeout(seconds: float | None) -> AsyncIterator[None]:
    """Raise `TimeoutError` if the block takes longer; like `asyncio.timeout`.

    While this process is stopped, what it waits for is often stopped, too. That counts as a
    sixteenth of the limit at most.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def tick(left: int) -> None:
        nonlocal timer
        if left == 0:
            limit.reschedule(loop.time())
        elif seconds is not None:
            timer = loop.call_later(seconds / TICKS, tick, left - 1)

    async with asyncio.timeout(None) as limit:
        tick(TICKS)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
