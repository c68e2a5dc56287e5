"""Control of the core's profilers from the front end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from quire.core.errors import QuireError

POLL_SECONDS = 0.05
WRITE_SECONDS = 120.0
"""Longest wait for a trace file."""

Caller = Callable[..., Awaitable[Any]]


class ProfilerBusyError(QuireError):
    """Another profile is being recorded."""

    code = "profiler_busy"


class ProfilingClient:
    """Starts and stops the core's profilers and waits for their results; steps go on meanwhile.

    Args:
        call: `AsyncLLM.call`.
    """

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._ops = asyncio.Lock()

    async def start(self) -> bool:
        """Start recording steps; return False if they are being recorded already."""
        fresh: bool = await self._call("start_profile")
        return fresh

    async def stop(self) -> list[str]:
        """End the recording, wait until its files are complete and return their names.

        Raises:
            QuireError: the trace could not be written.
        """
        status = await self._call("stop_profile")
        deadline = time.monotonic() + WRITE_SECONDS
        while status["writing"]:
            if time.monotonic() > deadline:
                raise QuireError(
                    f"The trace is not complete after {WRITE_SECONDS:.0f} s; it goes on."
                )
            await asyncio.sleep(POLL_SECONDS)
            status = await self._call("profile_status")
        if status["failures"]:
            raise QuireError(
                f"The trace could not be written: {status['failures'][-1]}.",
                fix="Requests are served as before.",
            )
        files: list[str] = status["files"]
        return files

    async def stacks(self, seconds: float) -> Any:
        """Return the `Stacks` of each process that computes the model, of the next seconds."""
        await self._call("start_stacks")
        try:
            await asyncio.sleep(seconds)
        finally:
            found = await self._call("stop_stacks")
        return found

    async def ops(self, steps: int, within: float) -> Any:
        """Return the `OpProfile` of the next steps.

        Args:
            steps: the most steps to record.
            within: seconds after which the recording ends with fewer steps.

        Raises:
            ProfilerBusyError: another one is being recorded.
        """
        if self._ops.locked():
            raise ProfilerBusyError("Operations are being profiled already.", fix="Try again soon.")
        async with self._ops:
            await self._call("start_op_profile", steps)
            deadline = time.monotonic() + within
            try:
                active = True
                while active and time.monotonic() < deadline:
                    await asyncio.sleep(POLL_SECONDS)
                    _, active = await self._call("op_profile_steps")
            finally:
                profile = await self._call("stop_op_profile")
            return profile
