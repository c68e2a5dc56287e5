"""Images in processes: clients take turns, and a process that fails costs one image."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from quire.core.errors import EngineDeadError, InvalidRequestError
from quire.frontend.images.pool import SPARE, ImagePool
from quire.frontend.images.prepare import Prepared, prepare
from quire.frontend.workers.pool import CLIENT
from quire.frontend.workers.turns import Turns
from tests.unit.frontend.images.test_prepare import CONFIG, VISION, encoded
from tests.unit.frontend.test_core_client import until

SCRIPTED = """
import os, sys, time
from quire.frontend.images import worker as w
def prepare(image, vision, images):
    open(sys.argv[1], "a").write(image.decode() + " ")
    while image == b"block" and not os.path.exists(sys.argv[1] + ".go"): time.sleep(0.001)
    if image == b"die": os._exit(7)
    if image == b"hurry": w.CPU_SECONDS = 0.02
    while image == b"spin": pass
    if image == b"hang": time.sleep(600)
    if image == b"huge": bytearray(2**31)
    return w.Prepared(image, [])
w.timed = prepare
sys.exit(w.main(sys.stdin.buffer, sys.stdout.buffer))
"""


@asynccontextmanager
async def scripted(path: Path, seconds: float = 60.0) -> AsyncIterator[ImagePool]:
    """Yield a pool of one process, which writes down what it is asked."""
    pool = ImagePool(VISION, CONFIG, (sys.executable, "-c", SCRIPTED, str(path)), seconds)
    pool._size, pool._turns = 1, Turns(1, SPARE)
    try:
        yield pool
    finally:
        pool.shutdown()


def ask(pool: ImagePool, client: str, image: bytes) -> asyncio.Task[Prepared]:
    token = CLIENT.set(client)
    try:
        return asyncio.create_task(pool.prepare(image))
    finally:
        CLIENT.reset(token)


async def test_clients_take_turns(tmp_path: Path) -> None:
    """An image waits for one image of each other client, and one that left takes no turn."""
    path = tmp_path / "asked"
    async with scripted(path) as pool:
        tasks = [ask(pool, "a", b"block")]
        await until(path.exists)
        tasks += [ask(pool, "a", b"a%d" % i) for i in range(4)]
        tasks += [ask(pool, "b", b"b%d" % i) for i in range(2)]
        gone = ask(pool, "c", b"gone")
        tasks.append(ask(pool, "d", b"d0"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        path.with_suffix(".go").touch()
        await asyncio.gather(*tasks)
        assert path.read_text() == "block b0 d0 a0 b1 a1 a2 a3 "
        assert not pool._turns._waiting
        assert len(pool._idle) == 1


async def test_no_client_fills_all_processes(tmp_path: Path) -> None:
    """Slow images of one client leave a process to a client that has none."""
    path = tmp_path / "asked"
    async with scripted(path) as pool:
        pool._turns = Turns(3, SPARE)
        slow = [ask(pool, "a", b"block") for _ in range(3)]
        await until(lambda: path.exists() and path.read_text() == "block block ")
        assert (await asyncio.wait_for(ask(pool, "b", b"b0"), 60)).digest == b"b0"
        [waits] = pool._turns._waiting.values()
        assert len(waits) == 1, "the third image of a"
        path.with_suffix(".go").touch()
        await asyncio.gather(*slow)
        assert not pool._turns._waiting
        assert not pool._turns._held
        assert len(pool._idle) == 3


async def test_a_turn_that_comes_to_a_cancelled_caller_is_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "asked"
    async with scripted(path) as pool:
        await pool.start()
        await pool._turns.take("a")
        left, stays = ask(pool, "b", b"left"), ask(pool, "c", b"c0")
        await asyncio.sleep(0)
        pool._turns.give("a")
        left.cancel()
        await stays
        assert left.cancelled()
        assert path.read_text() == "c0 "


async def test_a_slot_that_a_client_gives_back_may_let_two_begin() -> None:
    """One takes it, and its owner may take a spare one again."""
    turns = Turns(4, 2)
    for client in "ab":
        await turns.take(client)
    waits = {name: asyncio.create_task(turns.take(name)) for name in "ab"}
    await asyncio.sleep(0)
    assert not any(task.done() for task in waits.values())
    turns.give("a")
    assert turns._held == {"a": 1, "b": 2}
    await asyncio.gather(*waits.values())


async def test_an_image_that_fails_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "asked"
    async with scripted(path) as pool:
        with pytest.raises(InvalidRequestError, match="ended its process") as caught:
            await pool.prepare(b"die")
        assert caught.value.param == "image"
        with pytest.raises(InvalidRequestError, match="more than 2 GiB of memory"):
            await pool.prepare(b"huge")
        [worker] = pool._workers
        os.kill(worker.process.pid, signal.SIGKILL)
        assert (await pool.prepare(b"fine")).digest == b"fine"
        await pool.prepare(b"hurry")
        with pytest.raises(InvalidRequestError, match="more than 30 s of CPU time"):
            await pool.prepare(b"spin")
        assert path.read_text().count("spin") == 1, "it is not tried twice"
        pool._seconds = 0.05
        with pytest.raises(InvalidRequestError, match=r"or 0\.05 s"):
            await pool.prepare(b"hang")


async def test_shutdown_fails_images_that_wait(tmp_path: Path) -> None:
    path = tmp_path / "asked"
    async with scripted(path) as pool:
        tasks = [ask(pool, "a", b"hang") for _ in range(3)]
        await until(path.exists)
        pool.shutdown()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(found, EngineDeadError)
        with pytest.raises(EngineDeadError):
            await pool.prepare(b"late")


async def test_the_first_image_starts_a_process_with_the_same_result() -> None:
    pool = ImagePool(VISION, CONFIG)
    assert not pool._workers
    try:
        image = encoded("PNG")
        found = await pool.prepare(image)
        assert found.seconds > 0.0
        assert replace(found, seconds=0.0) == prepare(image, VISION, CONFIG)
        assert len(pool._workers) == 1
        with pytest.raises(InvalidRequestError, match="no image of PNG"):
            await pool.prepare(b"text")
    finally:
        pool.shutdown()
