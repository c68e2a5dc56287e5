"""A stream of one request's outputs to its consumer: at most one output waits."""

from __future__ import annotations

import asyncio
from typing import Protocol

from quire.core.outputs import CompletionOutput, RequestOutput
from quire.core.sampling_params import RequestOutputKind


class OutputSink(Protocol):
    """Takes a request's outputs in order, in the event loop. No method may raise."""

    def put(self, output: RequestOutput) -> None: ...

    def fail(self, error: Exception) -> None:
        """End the outputs with `error`."""


class OutputStream:
    """A slot for one output. For a slow consumer, later outputs are merged into it.

    So the answer's own size bounds the memory, however slowly it is read.
    """

    def __init__(self, kind: RequestOutputKind) -> None:
        self._delta = kind is RequestOutputKind.DELTA
        self._waiting: RequestOutput | None = None
        self._error: Exception | None = None
        self._event = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        if self._waiting is not None and self._delta:
            output = merge(self._waiting, output)
        self._waiting = output
        self._event.set()

    def fail(self, error: Exception) -> None:
        """Raise `error` in the consumer, after the waiting output."""
        self._error = error
        self._event.set()

    async def get(self) -> RequestOutput:
        """Return the next output; raise the error given to `fail`."""
        await self._event.wait()
        output, self._waiting = self._waiting, None
        if self._error is None:
            self._event.clear()
        if output is not None:
            return output
        assert self._error is not None
        raise self._error


def merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Return one delta that equals two; the later one's state holds."""
    completions = {c.index: c for c in first.outputs}
    for c in second.outputs:
        earlier = completions.get(c.index)
        completions[c.index] = c if earlier is None else _join(earlier, c)
    second.outputs = list(completions.values())
    if second.prompt_logprobs is None:
        second.prompt_logprobs = first.prompt_logprobs
    return second


def _join(first: CompletionOutput, second: CompletionOutput) -> CompletionOutput:
    logprobs = second.logprobs
    if first.logprobs is not None and logprobs is not None:
        logprobs = first.logprobs + logprobs
    return CompletionOutput(
        index=first.index,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        cumulative_logprob=second.cumulative_logprob,
        logprobs=logprobs,
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
        text_ends=first.text_ends + second.text_ends,
    )
