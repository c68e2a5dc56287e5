"""Processes that render and tokenize long prompts, so that the event loop stays free."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quire.core.errors import (
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    class_of_code,
)
from quire.core.images import ImageConfig, VisionConfig
from quire.frontend.images.prepare import Prepared
from quire.frontend.workers.child import LOST, Child
from quire.frontend.workers.pipe import frame, json_frame
from quire.frontend.workers.tokenizer_worker import ImageFile, Question, Setup, Tokenized

logger = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "quire.frontend.workers.tokenizer_worker")
ABANDONED_SECONDS = 1.0
"""How long a worker may work for a cancelled caller. A new one takes as long to start."""


IMAGE_SECONDS = 30.0
"""How long a worker may prepare an image. A file of a few kilobytes can take hours to decode."""


@dataclass(slots=True, eq=False)
class _Job:
    """A prompt, or an image, and its worker."""

    request: bytes
    worker: Child
    is_image: bool
    abandoned: bool = False


class TokenizerPool:
    """Worker processes, one prompt each at a time; other prompts wait in a queue.

    A worker that dies is replaced, and the new one gets its prompt, once. A cancelled caller leaves
    the queue. If a worker has its prompt already, the worker is replaced after
    `ABANDONED_SECONDS`.

    Args:
        path: see `text.tokenizers.tokenizer.load_tokenizer`.
        vision, images: how to prepare images, if the engine accepts some.

    Attributes:
        num_abandoned: prompts that are processed for cancelled callers.
    """

    def __init__(
        self,
        size: int,
        path: Path | None,
        vocab_size: int,
        command: Sequence[str] = WORKER_COMMAND,
        vision: VisionConfig | None = None,
        images: ImageConfig | None = None,
    ) -> None:
        self._size = size
        self._setup = frame(Setup(None if path is None else str(path), vocab_size, vision, images))
        self.num_abandoned = 0
        self._command = command
        self._decoder = msgspec.msgpack.Decoder(Tokenized)
        self._workers: set[Child] = set()
        self._idle: asyncio.Queue[Child] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Tokenized]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the workers, which then read their tokenizers in parallel."""
        for _ in range(self._size):
            self._idle.put_nowait(await self._spawn())

    async def tokenize(self, prompt: Question) -> Tokenized:
        """Return the prompt's tokens.

        Raises:
            QuireError: as `tokenizer_worker.tokenize`.
            RuntimeError: the prompt ended two workers, or a worker failed.
        """
        request = json_frame(prompt)
        job = _Job(request, await self._idle.get(), isinstance(prompt, ImageFile))
        task = asyncio.create_task(self._work(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            self._abandon(job, task)
            raise
        if result.error_code is not None:
            raise _error_of(result)
        return result

    async def prepare(self, image: bytes) -> Prepared:
        """Return an image as the tower reads it; raises as `images.prepare.prepare`."""
        found = (await self.tokenize(ImageFile(image))).image
        assert found is not None, "a worker answers what it is asked"
        return found

    def shutdown(self) -> None:
        """Stop the workers. Harmless when repeated."""
        self._closed = True
        while self._workers:
            self._workers.pop().end()

    async def _work(self, job: _Job) -> Tokenized:
        try:
            for _ in range(2):
                try:
                    async with asyncio.timeout(IMAGE_SECONDS if job.is_image else None):
                        answer = await job.worker.ask(job.request)
                    return self._decoder.decode(answer)
                except TimeoutError:
                    job.worker = await self._replace(job.worker, expected=True)
                    return _refused(f"decoding it takes more than {IMAGE_SECONDS:g} s")
                except LOST:
                    job.worker = await self._replace(job.worker, expected=job.abandoned)
                if job.abandoned:
                    break
        finally:
            self._idle.put_nowait(job.worker)
        if job.is_image:
            return _refused("decoding it ended two processes")
        return Tokenized(error_code="died", error="It ended two tokenizer processes.")

    def _abandon(self, job: _Job, task: asyncio.Task[Tokenized]) -> None:
        """Let the worker finish within `ABANDONED_SECONDS`, else end it."""
        if task.done():
            return
        self.num_abandoned += 1
        job.abandoned = True

        def end() -> None:
            job.worker.process.kill()

        timer = asyncio.get_running_loop().call_later(ABANDONED_SECONDS, end)

        def ended(task: asyncio.Task[Tokenized]) -> None:
            self.num_abandoned -= 1
            timer.cancel()
            if not task.cancelled():
                task.exception()  # retrieve it: the caller is cancelled

        task.add_done_callback(ended)

    async def _replace(self, dead: Child, *, expected: bool) -> Child:
        if self._closed:
            raise EngineDeadError("The engine has been shut down.")
        self._workers.discard(dead)
        status = dead.end()
        if not expected:
            logger.warning("a tokenizer process ended with status %d; another replaces it", status)
        return await self._spawn()

    async def _spawn(self) -> Child:
        worker = await Child.start(self._command)
        worker.writer.write(self._setup)
        self._workers.add(worker)
        return worker


def _refused(why: str) -> Tokenized:
    error = f"The image cannot be read: {why}."
    return Tokenized(error_code=InvalidRequestError.code, error=error, error_param="image")


def _error_of(result: Tokenized) -> Exception:
    """Return the worker's error, in its own class if it is a `QuireError`."""
    if result.too_long is not None:
        return ContextLengthError(*result.too_long, counted=False)
    if (kind := class_of_code(result.error_code or "")) is not None:
        return kind(result.error, param=result.error_param)
    return RuntimeError(f"The prompt could not be tokenized: {result.error_code}: {result.error}")
