"""Prepares the images of prompts, each in the right place."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from quire.core.config import EngineConfig
from quire.core.errors import ContextLengthError
from quire.core.images import IMAGE_PROCESSES, VisionConfig
from quire.frontend.images.fetch import Media
from quire.frontend.images.pool import ImagePool
from quire.frontend.images.prepare import Prepared, timed
from quire.frontend.images.prompts import check_count, is_embeds
from quire.frontend.workers.threads import DaemonThreads
from quire.metrics.times import FrontTimes
from quire.resolve.arguments import EngineArgs
from quire.system.tasks import all_of

_THREADS = 2


class ImageReader:
    """Decodes files in processes, and prepares arrays and embeddings in threads."""

    def __init__(self, config: EngineConfig, args: EngineArgs, front: FrontTimes) -> None:
        self._config = config
        self._front = front
        self._media = Media(args.allowed_media_domains or "", args.allowed_local_media_path)
        self._threads = DaemonThreads(_THREADS, "images")
        vision, images = config.model.vision, config.images
        self.pool = None if vision is None or images is None else ImagePool(vision, images)

    @property
    def num_abandoned(self) -> int:
        """Return how many images are prepared for cancelled callers."""
        pool = 0 if self.pool is None else self.pool.num_abandoned
        return pool + self._threads.num_abandoned

    def shutdown(self) -> None:
        """Stop all work; waiting callers fail. Harmless when repeated."""
        self._media.shutdown()
        self._threads.shutdown()
        if self.pool is not None:
            self.pool.shutdown()

    async def prepare(self, sources: list[Any]) -> tuple[list[Prepared], tuple[float, float]]:
        """Return the images of a prompt in order, and when their preparation began and ended.

        As many are prepared at a time as there are processes: each may take `MAX_BYTES`. Once they
        fill the context, no others are read, so their pixels are bounded by it.

        Raises:
            InvalidRequestError: they are too many, or one cannot be read.
        """
        begun = time.monotonic()
        check_count(len(sources), self._config.images)
        gate = asyncio.Semaphore(IMAGE_PROCESSES)
        limit, rows = self._config.scheduler.max_model_len, 0

        async def one(source: Any) -> Prepared:
            nonlocal rows
            async with gate:
                found = await self._prepare(await self._media.load(source))
            rows += _least_rows(found, self._vision)
            if rows >= limit:
                raise ContextLengthError(rows, limit, counted=False)
            return found

        found = await all_of(map(one, sources))
        self._front.images += sum(image.seconds for image in found)
        return found, (begun, time.monotonic())

    @property
    def _vision(self) -> VisionConfig:
        vision = self._config.model.vision
        assert vision is not None, "only models with a tower accept images"
        return vision

    async def _prepare(self, image: Any) -> Prepared:
        vision, images = self._vision, self._config.images
        assert images is not None, "the images were counted"
        assert self.pool is not None, "the engine accepts images"
        if is_embeds(image):
            return await self._threads.run(partial(_embedded, image, self._config))
        if isinstance(image, bytes | bytearray):
            return await self.pool.prepare(bytes(image))
        return await self._threads.run(partial(timed, image, vision, images))


def _least_rows(image: Prepared, vision: VisionConfig) -> int:
    """Return how many rows a prompt has for an image, at least."""
    if vision.pool is not None:
        return 1
    unit = vision.patch_size * vision.merge
    tiles = image.tiles[:1] if vision.resolutions else image.tiles
    return sum(tile.rows or (tile.height // unit) * (tile.width // unit) for tile in tiles)


def _embedded(image: Any, config: EngineConfig) -> Prepared:
    from quire.frontend.images.embeds import prepare_embeds  # numpy: not in the API process

    return prepare_embeds(image, config)
