"""Processes that render and tokenize long prompts, so that the event loop stays free."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from quire.core.errors import ContextLengthError, class_of_code
from quire.frontend.workers.pipe import frame, json_frame
from quire.frontend.workers.pool import DeadlyError, WorkerPool
from quire.frontend.workers.tokenizer_worker import Question, Setup, Tokenized

WORKER_COMMAND = (sys.executable, "-m", "quire.frontend.workers.tokenizer_worker")


class TokenizerPool(WorkerPool[Tokenized]):
    """Worker processes with a tokenizer.

    Args:
        path: see `text.tokenizers.tokenizer.load_tokenizer`.
    """

    def __init__(
        self, size: int, path: Path | None, vocab_size: int, command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        setup = frame(Setup(None if path is None else str(path), vocab_size))
        decoder = msgspec.msgpack.Decoder(Tokenized)
        super().__init__(size, command, setup, decoder, "a tokenizer process")

    async def tokenize(self, prompt: Question) -> Tokenized:
        """Return the prompt's tokens.

        Raises:
            QuireError: as `tokenizer_worker.tokenize`.
            RuntimeError: the prompt ended its worker, or a worker failed.
        """
        try:
            result = await self.ask(json_frame(prompt))
        except DeadlyError:
            raise RuntimeError(
                "The prompt could not be tokenized: it ended its tokenizer process."
            ) from None
        if result.error_code is not None:
            raise _error_of(result)
        return result


def _error_of(result: Tokenized) -> Exception:
    """Return the worker's error, in its own class if it is a `QuireError`."""
    if result.too_long is not None:
        return ContextLengthError(*result.too_long, counted=False)
    if (kind := class_of_code(result.error_code or "")) is not None:
        return kind(result.error, param=result.error_param)
    return RuntimeError(f"The prompt could not be tokenized: {result.error_code}: {result.error}")
