"""An event loop that runs only while a caller waits."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from quire.core.errors import EngineDeadError
from quire.frontend.sync_loop import SyncLoop


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_results_and_errors_come_back() -> None:
    loop = SyncLoop()
    assert loop.run(answer(3)) == 3

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop.run(fail())
    loop.close()
    loop.close()
    with pytest.raises(EngineDeadError, match="shut down"):
        loop.run(answer(3))


def test_ctrl_c_cancels_the_work() -> None:
    loop, ended = SyncLoop(), []

    async def wait() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        loop.run(wait())
    assert ended == [True]
    assert loop.run(answer(3)) == 3
    loop.close()


def test_ctrl_c_in_a_task_that_others_wait_for_is_raised_once() -> None:
    loop, ended = SyncLoop(), []

    async def press() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def wait() -> None:
        task = asyncio.create_task(press())
        try:
            await asyncio.shield(task)
        finally:
            task.cancel()

    with pytest.raises(KeyboardInterrupt):
        loop.run(wait())
    assert loop.run(answer(3)) == 3
    assert ended == [True]
    loop.close()


def test_ctrl_c_that_another_thread_receives_ends_the_wait() -> None:
    loop, late = SyncLoop(), []

    def press() -> None:
        time.sleep(0.1)  # the loop waits by then; otherwise it needs no waking
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    async def wait() -> None:
        threading.Thread(target=press).start()
        asyncio.get_running_loop().call_later(30, late.append, True)
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        loop.run(wait())
    assert not late
    assert loop.run(answer(3)) == 3
    loop.close()


async def test_inside_another_loop() -> None:
    outer, loop = asyncio.get_running_loop(), SyncLoop()
    assert loop.run(answer(3)) == 3
    assert asyncio.get_running_loop() is outer
    assert await asyncio.wait_for(answer(4), 60) == 4
    loop.close()
