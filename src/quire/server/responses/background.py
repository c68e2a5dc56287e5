"""Background responses: they are completed even if no client waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request

from quire.core.outputs import RequestOutput
from quire.server.errors import log_unexpected
from quire.server.http.connection import while_connected
from quire.server.http.event_stream import PromptSink
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
    work = _Work(answer, EventLog() if stream else None)
    if work.log is not None:
        work.log.add(answer.queued())
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


class _Work:
    """A response in the making, which receives the outputs of its prompt.

    Attributes:
        log: its events, if it is streamed.
    """

    def __init__(self, answer: ResponseAnswer, log: EventLog | None) -> None:
        self.log = log
        self._answer = answer
        self._error: Exception | None = None
        self._done = asyncio.Event()

    def sink(self, prompt: int) -> PromptSink:
        return PromptSink(self, prompt)

    def put(self, prompt: int, output: RequestOutput) -> None:
        try:
            self._note(self._answer.new_events(prompt, output))
        except Exception as error:
            self.fail(error)
        if output.finished:
            self._done.set()

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._done.set()

    async def finish(self) -> None:
        response = self._answer.response
        if self.log is None and response.status == "queued":  # a stream waits for its first event
            response.status = "in_progress"
        await self._done.wait()
        if self._error is None:
            self._note([self._answer.last_events()])
        else:
            log_unexpected(self._error)
            self._note(self._answer.fail(self._error))

    def _note(self, events: list[bytes]) -> None:
        if self.log is not None:
            self.log.add(events)
