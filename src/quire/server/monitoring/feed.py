"""`GET /dashboard/stream`: one snapshot of the engine per second, as server-sent events.

One task takes each snapshot once for all viewers, and runs only while there are viewers. A viewer
that reads too slowly misses some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from quire.core.errors import EngineDeadError
from quire.server.contract import EVENTS, OF_ENGINE, contract
from quire.server.errors import ApiError
from quire.server.http.connection import while_connected
from quire.server.http.event_stream import NOT_BUFFERED
from quire.server.state import server_state

logger = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two snapshots."""
MAX_VIEWERS = 16


class Feed:
    """Takes snapshots while there are viewers.

    Args:
        make: returns one encoded snapshot.
    """

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self._make = make
        self._num_viewers = 0
        self._newest: bytes | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def check_room(self) -> None:
        """Refuse a viewer with 429 beyond `MAX_VIEWERS`, and with 503 after `close`."""
        if self._closed:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "The server is shutting down.")
        if self._num_viewers >= MAX_VIEWERS:
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MAX_VIEWERS} dashboards are open already; close one of them.",
                code="too_many_viewers",
                headers={"Retry-After": "10"},
            )

    @contextmanager
    def viewer(self) -> Iterator[None]:
        """Take snapshots inside, for one more viewer."""
        self._num_viewers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._num_viewers -= 1
            if not self._num_viewers:
                self._task.cancel()
                self._task = self._newest = None

    async def snapshots(self) -> AsyncIterator[bytes]:
        """Yield the newest snapshot whenever it is new to this viewer; see `viewer`."""
        sent = None
        while not (self._closed or self._task is None or self._task.done()):
            if self._newest is sent:
                await self._changed.wait()
            elif (sent := self._newest) is not None:
                yield sent

    def close(self) -> None:
        """End all streams: the server shuts down and waits for connections."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                due = loop.time() + INTERVAL
                self._newest = b"event: snapshot\ndata: %b\n\n" % await self._make()
                self._notify()
                await asyncio.sleep(max(0.0, due - loop.time()))
        except EngineDeadError:
            pass
        except Exception:
            logger.exception("the dashboard's stream has failed")
        finally:
            self._notify()


class FeedResponse(StreamingResponse):
    """One viewer's stream; it ends with the connection, the engine or the server."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed.snapshots(), headers=NOT_BUFFERED, media_type=EVENTS)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(head)
            await send({"type": "http.response.body"})
            return
        with self._feed.viewer():
            try:
                await while_connected(self.stream_response(send), receive)
            except (ClientDisconnect, OSError):
                logger.debug("a dashboard was closed")


@contract(answer=EVENTS, errors=[HTTPStatus.TOO_MANY_REQUESTS, *OF_ENGINE])
async def stream(request: Request) -> Response:
    """Snapshots of the engine, from now on (see `snapshot.Snapshot`)."""
    server_state(request).live_engine()
    feed: Feed = request.app.state.feed
    feed.check_room()
    return FeedResponse(feed)
