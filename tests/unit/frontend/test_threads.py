"""Threads beside the loop: a queue that callers can leave, and nothing the exit waits for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from quire.core.errors import EngineDeadError
from quire.frontend.workers.threads import DaemonThreads
from tests.unit.frontend.test_core_client import until


async def test_results_and_errors_come_back() -> None:
    threads = DaemonThreads(2, "test")
    assert await asyncio.gather(*(threads.run(lambda i=i: i) for i in range(20))) == [*range(20)]
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await threads.run(lambda: threading.current_thread().daemon)


async def test_who_leaves_the_queue_costs_nothing_and_who_is_served_is_counted() -> None:
    threads, go, ran = DaemonThreads(1, "test"), threading.Event(), []
    served = asyncio.create_task(threads.run(go.wait))
    queued = asyncio.create_task(threads.run(lambda: ran.append(1)))
    await until(lambda: threads._queue.empty() or threads._queue.qsize() == 1)
    await until(lambda: threads._queue.qsize() == 1)
    for task in (queued, served):
        task.cancel()
        await asyncio.wait([task])
    assert threads.num_abandoned == 1
    go.set()
    await threads.run(lambda: None)
    await until(lambda: threads.num_abandoned == 0)
    assert not ran


async def test_shutdown_fails_everybody() -> None:
    threads, go = DaemonThreads(1, "test"), threading.Event()
    tasks = [asyncio.create_task(threads.run(go.wait)) for _ in range(3)]
    await until(lambda: threads._queue.qsize() == 2)
    threads.shutdown()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(found, EngineDeadError)
    go.set()
    with pytest.raises(EngineDeadError):
        await threads.run(go.wait)


def test_the_exit_waits_for_no_thread() -> None:
    code = (
        "import asyncio, time; from quire.frontend.workers.threads import DaemonThreads\n"
        "async def main():\n"
        "    task = asyncio.create_task(DaemonThreads(1, 'test').run(lambda: time.sleep(600)))\n"
        "    await asyncio.sleep(0.01)\n"
        "    task.cancel()\n"
        "asyncio.run(main())"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
