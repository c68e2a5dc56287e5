"""An application behind a socket, as `serve` runs it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp

from quire.server.http.listener import bind
from quire.server.http.protocol import Site
from quire.server.http.server import HttpServer


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
