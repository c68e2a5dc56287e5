"""The images of one prompt are prepared at the same time, as many as there are processes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.errors import ContextLengthError, InvalidRequestError
from quire.core.images import IMAGE_PROCESSES
from quire.frontend.images.prepare import Prepared, Tile, refused
from quire.frontend.images.reader import ImageReader
from quire.metrics.times import FrontTimes
from quire.resolve.arguments import EngineArgs
from tests.unit.frontend.images.test_prepare import CONFIG, VISION


class Pool:
    """Answers once `IMAGE_PROCESSES` images are here."""

    def __init__(self, *tiles: Tile) -> None:
        self.tiles = [*tiles]
        self.running = self.ended = 0
        self.full = asyncio.Event()

    async def prepare(self, image: bytes) -> Prepared:
        self.running += 1
        assert self.running <= IMAGE_PROCESSES
        try:
            if self.running == IMAGE_PROCESSES:
                self.full.set()
            await self.full.wait()
            await asyncio.sleep(0)
            if image == b"bad":
                raise refused("it is bad")
            if image == b"slow":
                await asyncio.Event().wait()
            return Prepared(image, self.tiles)
        finally:
            self.running -= 1
            self.ended += 1

    def shutdown(self) -> None:
        pass


def reader_of(pool: Any) -> ImageReader:
    config: Any = SimpleNamespace(
        model=SimpleNamespace(vision=VISION),
        images=replace(CONFIG, most=99),
        scheduler=SimpleNamespace(max_model_len=100),
    )
    reader = ImageReader(config, EngineArgs("m"), FrontTimes())
    reader.pool = pool
    return reader


async def test_images_beyond_the_context_are_not_read() -> None:
    unit = VISION.patch_size * VISION.merge
    pool = Pool(Tile(4 * unit, 6 * unit, b""), Tile(unit, unit, b""))  # 25 rows
    reader = reader_of(pool)
    found, _ = await asyncio.wait_for(reader.prepare([b"a"] * 3), 60)
    assert len(found) == 3
    with pytest.raises(ContextLengthError, match="it has at least 100"):
        await asyncio.wait_for(reader.prepare([b"a"] * 50), 60)
    assert pool.ended < 20
    reader.shutdown()


async def test_images_of_a_prompt_are_prepared_at_the_same_time() -> None:
    pool: Any = Pool()
    reader = reader_of(pool)
    images = [b"%d" % number for number in range(IMAGE_PROCESSES + 2)]
    found, (begun, ended) = await asyncio.wait_for(reader.prepare(list(images)), 60)
    assert [each.digest for each in found] == images
    assert begun <= ended
    with pytest.raises(InvalidRequestError, match="it is bad"):
        await asyncio.wait_for(reader.prepare([b"slow", b"bad", b"slow"]), 60)
    assert not pool.running, "one that fails ends the others"
    assert pool.ended == IMAGE_PROCESSES + 5
    reader.shutdown()
