"""An application behind a socket, as `serve` runs it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from threading import Event, Thread
from typing import Any, TypeVar

from starlette.types import ASGIApp

from quire.server.http.listener import bind
from quire.server.http.protocol import Site
from quire.server.http.server import HttpServer

T = TypeVar("T")


@asynccontextmanager
async def listening(
    app: ASGIApp, listener: socket.socket | None = None, grace: float = 0.0, **options: Any
) -> AsyncIterator[tuple[HttpServer, Any]]:
    """Its server and address until the end of the block.

    Args:
        grace: seconds that connections have at the end.
        options: those of `Site`.
    """
    with listener or bind("127.0.0.1", 0) as bound:
        bound.listen()
        server = HttpServer(Site(app, **options))
        task = asyncio.create_task(server.serve(bound))
        try:
            yield server, bound.getsockname()
        finally:
            server.stop(grace)
            await task


@contextmanager
def in_thread(manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """What `manager` gives, in an event loop in a thread of its own until the end of the block."""
    ready, done = Event(), Event()
    given: list[T] = []
    faults: list[BaseException] = []

    async def hold() -> None:
        async with manager as found:
            given.append(found)
            ready.set()
            await asyncio.to_thread(done.wait)

    def work() -> None:
        try:
            asyncio.run(hold())
        except BaseException as error:
            faults.append(error)
        finally:
            ready.set()

    thread = Thread(target=work)
    thread.start()
    try:
        ready.wait()
        if given:
            yield given[0]
    finally:
        done.set()
        thread.join()
    if faults:
        raise faults[0]
