"""`GET /dashboard/stream`: one snapshot of the engine per second, as server-sent events.

One task takes each snapshot once for all viewers, and runs only while there are viewers. At most
one snapshot waits for a viewer: one that reads too slowly misses some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.core.errors import EngineDeadError
from quire.server.contract import EVENTS, OF_ENGINE, contract
from quire.server.errors import ApiError
from quire.server.http.connection import while_connected
from quire.server.state import server_state

logger = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two snapshots."""
MAX_VIEWERS = 16


class Viewer:
    """Holds the newest snapshot that one connection has not sent yet."""

    def __init__(self, newest: bytes | None) -> None:
        self._newest = newest
        self._closed = False
        self._awake = asyncio.Event()
        if newest is not None:
            self._awake.set()

    def put(self, data: bytes) -> None:
        """Replace the unsent snapshot."""
        self._newest = data
        self._awake.set()

    def close(self) -> None:
        self._closed = True
        self._awake.set()

    async def next(self) -> bytes | None:
        """Return the next snapshot; None at the end."""
        await self._awake.wait()
        if self._closed:
            return None
        self._awake.clear()
        return self._newest


class Feed:
    """Takes snapshots while there are viewers.

    Args:
        make: returns one encoded snapshot.
    """

    def __init__(self, make: Callable[[], Awaitable[bytes]]) -> None:
        self._make = make
        self._viewers: set[Viewer] = set()
        self._newest: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def check_room(self) -> None:
        """Refuse a viewer with 429 beyond `MAX_VIEWERS`, and with 503 after `close`."""
        if self._closed:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "The server is shutting down.")
        if len(self._viewers) >= MAX_VIEWERS:
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MAX_VIEWERS} dashboards are open already; close one of them.",
                code="too_many_viewers",
                headers={"Retry-After": "10"},
            )

    def join(self) -> Viewer:
        """Start watching; `leave` ends it."""
        viewer = Viewer(self._newest)
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = self._newest = None

    def close(self) -> None:
        """End all streams: the server shuts down and waits for connections."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        for viewer in self._viewers:
            viewer.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                due = loop.time() + INTERVAL
                self._newest = await self._make()
                for viewer in self._viewers:
                    viewer.put(self._newest)
                await asyncio.sleep(max(0.0, due - loop.time()))
        except EngineDeadError:
            self._end()
        except Exception:
            logger.exception("the dashboard's stream has failed")
            self._end()


class FeedResponse(Response):
    """One viewer's stream; it ends with the connection, the engine or the server."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        if scope["method"] == "HEAD":
            await send(head)
            await send({"type": "http.response.body"})
            return
        viewer = self._feed.join()
        try:
            await send(head)
            await while_connected(_send_all(viewer, send), receive)
        except (ClientDisconnect, OSError):
            logger.debug("a dashboard was closed")
        finally:
            self._feed.leave(viewer)


async def _send_all(viewer: Viewer, send: Send) -> None:
    while (data := await viewer.next()) is not None:
        body = b"event: snapshot\ndata: " + data + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body"})


@contract(answer=EVENTS, errors=[HTTPStatus.TOO_MANY_REQUESTS, *OF_ENGINE])
async def stream(request: Request) -> Response:
    """Snapshots of the engine, from now on (see `snapshot.Snapshot`)."""
    server_state(request).live_engine()
    feed: Feed = request.app.state.feed
    feed.check_room()
    return FeedResponse(feed)
