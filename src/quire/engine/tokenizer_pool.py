"""Processes that render and tokenize what would hold up the event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from quire.core import errors
from quire.core.errors import EngineDeadError, QuireError
from quire.engine.child import LOST, Child
from quire.engine.pipe import frame, json_frame
from quire.engine.tokenizer_worker import ChatPrompt, PooledText, Setup, Tokenized

logger = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "quire.engine.tokenizer_worker")


class TokenizerPool:
    """Worker processes, each with one prompt at a time; the others wait in line.

    A worker that dies is replaced, and its prompt given to the new one, once.

    Args:
        path: see `text.tokenizer.load_tokenizer`.
    """

    def __init__(
        self,
        size: int,
        path: Path | None,
        vocab_size: int,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._size = size
        self._setup = frame(Setup(None if path is None else str(path), vocab_size))
        self._command = command
        self._decoder = msgspec.msgpack.Decoder(Tokenized)
        self._workers: set[Child] = set()
        self._idle: asyncio.Queue[Child] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Tokenized]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the workers; they read their tokenizer while others work already."""
        for _ in range(self._size):
            self._idle.put_nowait(await self._spawn())

    async def tokenize(self, prompt: str | ChatPrompt | PooledText) -> Tokenized:
        """The prompt's tokens. Whoever is cancelled does not wait, but leaves the worker whole.

        Raises:
            QuireError: as `tokenizer_worker.tokenize`, or the prompt ended two workers.
        """
        task = asyncio.create_task(self._tokenize(json_frame(prompt)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        result = await asyncio.shield(task)
        if result.error_code is not None:
            raise _error_of(result)
        return result

    def shutdown(self) -> None:
        """Stop the workers. Harmless when repeated."""
        self._closed = True
        while self._workers:
            self._workers.pop().end()

    async def _tokenize(self, request: bytes) -> Tokenized:
        worker = await self._idle.get()
        try:
            for _ in range(2):
                try:
                    return self._decoder.decode(await worker.ask(request))
                except LOST:
                    worker = await self._replace(worker)
        finally:
            self._idle.put_nowait(worker)
        return Tokenized(error_code="died", error="It ended two tokenizer processes.")

    async def _replace(self, dead: Child) -> Child:
        if self._closed:
            raise EngineDeadError("The engine has been shut down.")
        self._workers.discard(dead)
        status = dead.end()
        logger.warning("a tokenizer process ended with status %d; another takes its place", status)
        return await self._spawn()

    async def _spawn(self) -> Child:
        worker = await Child.start(self._command)
        worker.writer.write(self._setup)
        self._workers.add(worker)
        return worker


def _error_of(result: Tokenized) -> Exception:
    """What the worker raised, as the type it was raised as where that is the caller's to act on."""
    known = vars(errors).values()
    kinds = {k.code: k for k in known if isinstance(k, type) and issubclass(k, QuireError)}
    kind = kinds.get(result.error_code or "")
    if kind is not None:
        return kind(result.error, param=result.error_param)
    return RuntimeError(f"The prompt could not be tokenized: {result.error_code}: {result.error}")
