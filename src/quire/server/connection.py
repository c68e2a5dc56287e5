"""A request lives as long as its connection: when the client goes, its work is aborted.

Neither Starlette nor uvicorn cancels an endpoint whose client has left, so that an abandoned
generation would run to its end. Both helpers here watch the connection beside the work and
cancel the work at once; cancelling it closes the engine's generator, which aborts the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Coroutine
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from quire.server.errors import encode_event, log_unexpected

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def while_connected(work: Coroutine[object, object, T], receive: Receive) -> T:
    """Await `work`, unless the client disconnects first.

    Args:
        receive: the ASGI channel, its request body already read.

    Raises:
        ClientDisconnect: the client went; `work` has been cancelled and has ended.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        await _cancel(task)
        await _cancel(gone)


class EventStream(Response):
    """Server-sent events from an async generator, closed as soon as the client is gone.

    An exception of the generator becomes an error event, and the stream ends with `[DONE]`
    either way, as OpenAI's clients expect.

    Args:
        first: the first event, so that an error before it could still become a status.
        events: the rest; must be closable at any point.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(self._send_all(send), receive)
        except (ClientDisconnect, OSError):
            logger.debug("a client left before the end of its stream")

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._events):
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
            await send(_body(self._first))
            async for event in _with_errors(self._events):
                await send(_body(event))
            await send(_body(b"data: [DONE]\n\n", more=False))


async def open_stream(events: AsyncGenerator[bytes, None], receive: Receive) -> EventStream:
    """A response that streams `events`, once the first of them is there.

    Raises:
        Exception: what the generator raised before its first event.
        ClientDisconnect: the client left before it.
    """

    async def first() -> bytes:
        return await anext(events)

    try:
        return EventStream(await while_connected(first(), receive), events)
    except BaseException:
        await events.aclose()
        raise


async def _with_errors(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """`events`, and an error event in place of an exception."""
    try:
        async for event in events:
            yield event
    except Exception as error:
        log_unexpected(error)
        yield encode_event(error)


def _body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[T]) -> None:
    """Cancel `task` and wait until it has ended; its outcome does not matter any more."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("cancelled work ended with %r", error)
