"""Time limits of a process that is stopped now and then."""

from __future__ import annotations

import asyncio
import time

import pytest

from quire.system.patience import TICKS, patient_timeout


def test_a_limit_without_a_stop() -> None:
    async def late() -> None:
        async with patient_timeout(0.05):
            await asyncio.sleep(60)

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(late())
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("stops", [1, TICKS])
def test_a_stop_is_a_part_of_the_limit(stops: int) -> None:
    async def main() -> None:
        loop, late = asyncio.get_running_loop(), 0.0
        real = loop.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "time", lambda: real() + late)
            async with patient_timeout(600):
                for _ in range(stops):
                    await asyncio.sleep(0.001)
                    late += 1000.0  # all timers are due, as after a stop
                    await asyncio.sleep(0.001)

    if stops == 1:
        asyncio.run(main())
    else:
        with pytest.raises(TimeoutError):
            asyncio.run(main())


@pytest.mark.parametrize("seconds", [None, 0.01])
def test_what_ends_in_time(seconds: float | None) -> None:
    async def quick() -> int:
        async with patient_timeout(seconds):
            pass
        await asyncio.sleep(0.03)  # no timer is left
        return len(asyncio.all_tasks())

    assert asyncio.run(quick()) == 1


def test_a_cancelled_block_is_cancelled() -> None:
    async def main() -> None:
        async def block() -> None:
            async with patient_timeout(60):
                await asyncio.sleep(60)

        task = asyncio.create_task(block())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
