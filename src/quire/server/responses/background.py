"""Background responses: they are completed even if no client waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request

from quire.frontend.output.stream import OutputStream
from quire.server.errors import log_unexpected
from quire.server.http.connection import while_connected
from quire.server.responses.answer import ResponseAnswer
from quire.server.responses.events import EventLog
from quire.server.responses.item_types import Item
from quire.server.responses.store import Making, ResponseStore
from quire.server.turns import in_turns


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
    log = EventLog() if stream else None
    if log is not None:
        log.add(answer.queued())
    outputs = OutputStream(answer.call.params.output_kind)
    await while_connected(answer.submit(lambda _: outputs), request.receive)

    def ended(task: asyncio.Task[None]) -> None:
        answer.close()
        if task.cancelled():  # perhaps before its first step, so it could not do this itself
            answer.writer.flush()
            answer.response.status = "cancelled"
        if log is not None:
            log.add([], last=True)

    task = asyncio.create_task(_make(answer, outputs, log))
    task.add_done_callback(ended)
    making = Making(task, answer.writer.flush, log)
    store.put(answer.response, earlier, items, making)
    return log


async def _make(answer: ResponseAnswer, outputs: OutputStream, log: EventLog | None) -> None:
    """Make a response of the outputs of its prompt, and add its events to the log."""
    response, finished = answer.response, False
    if log is None and response.status == "queued":  # a stream waits for its first event
        response.status = "in_progress"
    try:
        while not finished:
            output = await outputs.get()
            finished = output.finished
            events = await in_turns(answer.new_events(0, output))
            if log is not None:
                log.add(events)
        events = [answer.last_events()]
    except Exception as error:
        log_unexpected(error)
        events = answer.fail(error)
    if log is not None:
        log.add(events)
