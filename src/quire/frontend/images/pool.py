"""Processes that decode images, because what a client sends may take hours or end its decoder."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.images import IMAGE_PROCESSES, ImageConfig, VisionConfig
from quire.frontend.images.prepare import Prepared, refused
from quire.frontend.images.worker import CPU_SECONDS, Setup
from quire.frontend.workers.pipe import frame
from quire.frontend.workers.pool import DeadlyError, WorkerPool

WORKER_COMMAND = (sys.executable, "-m", "quire.frontend.images.worker")
SPARE = 1
"""Of the processes: a client's images need not wait for another's slow ones."""
IMAGE_SECONDS = 4 * CPU_SECONDS
"""For one image, with the time that its process waits for a core."""


class ImagePool(WorkerPool[Prepared | str]):
    """Worker processes that prepare images; the first image starts one."""

    def __init__(
        self,
        vision: VisionConfig,
        images: ImageConfig,
        command: Sequence[str] = WORKER_COMMAND,
        seconds: float = IMAGE_SECONDS,
    ) -> None:
        setup = frame(Setup(vision, images))
        decoder: msgspec.msgpack.Decoder[Prepared | str] = msgspec.msgpack.Decoder(Prepared | str)
        name = "an image process"
        super().__init__(IMAGE_PROCESSES, command, setup, decoder, name, seconds, SPARE)

    async def prepare(self, image: bytes) -> Prepared:
        """Return an image as the tower reads it; raises as `images.prepare.prepare`."""
        try:
            found = await self.ask(frame(image))
        except TimeoutError:
            raise refused(
                f"decoding it takes more than {CPU_SECONDS:g} s of CPU time, or {self._seconds:g} s"
            ) from None
        except DeadlyError:
            raise refused("decoding it ended its process") from None
        if isinstance(found, str):
            raise InvalidRequestError(found, param="image")
        return found
