"""Background responses: they are completed even if no client waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.requests import Request

from quire.core.outputs import RequestOutput
from quire.server.errors import log_unexpected
from quire.server.http.connection import while_connected
from quire.server.http.event_stream import PromptSink
from quire.server.openai.generation import FinalOutputs
from quire.server.responses.answer import ResponseAnswer
from quire.server.responses.events import EventLog
from quire.server.responses.item_types import Item
from quire.server.responses.store import Making, ResponseStore


async def start(
    request: Request,
    answer: ResponseAnswer,
    store: ResponseStore,
    earlier: Sequence[Item],
    items: Sequence[Item],
    *,
    stream: bool,
) -> EventLog | None:
    """Submit a response, and let a task finish it. Errors of the request are raised here.

    Returns:
        The log of its events if `stream`, else None.
    """
    work = _Streamed(answer) if stream else _Whole(answer)
    await while_connected(answer.submit(work.sink), request.receive)

    def ended(task: asyncio.Task[None]) -> None:
        answer.close()
        if task.cancelled():  # perhaps before its first step, so it could not do this itself
            answer.writer.flush()
            answer.response.status = "cancelled"
        if work.log is not None:
            work.log.add([], last=True)

    task = asyncio.create_task(work.finish())
    task.add_done_callback(ended)
    making = Making(task, answer.writer.flush, work.log)
    store.put(answer.response, earlier, items, making)
    return work.log


class _Whole:
    """A response that is written when it is complete."""

    log = None

    def __init__(self, answer: ResponseAnswer) -> None:
        self._answer = answer
        self._final = FinalOutputs(1)
        self.sink: Callable[[int], PromptSink] = self._final.sink

    async def finish(self) -> None:
        answer = self._answer
        answer.response.status = "in_progress"
        try:
            [output] = await self._final.all()
            answer.used.add(0, output)
            answer.whole(output)
        except Exception as error:
            log_unexpected(error)
            answer.fail(error)


class _Streamed:
    """A response whose events are stored as they arrive."""

    def __init__(self, answer: ResponseAnswer) -> None:
        self.log = EventLog()
        self.log.add(answer.queued())
        self._answer = answer
        self._error: Exception | None = None
        self._done = asyncio.Event()

    def sink(self, prompt: int) -> PromptSink:
        return PromptSink(self, prompt)

    def put(self, prompt: int, output: RequestOutput) -> None:
        try:
            self.log.add(self._answer.new_events(prompt, output))
        except Exception as error:
            self.fail(error)
        if output.finished:
            self._done.set()

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._done.set()

    async def finish(self) -> None:
        await self._done.wait()
        if self._error is None:
            self.log.add([self._answer.last_events()])
        else:
            log_unexpected(self._error)
            self.log.add(self._answer.fail(self._error))
