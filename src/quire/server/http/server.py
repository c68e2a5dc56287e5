"""An HTTP server: accepts connections for an ASGI application until it is stopped."""

from __future__ import annotations

import asyncio
import socket
import ssl

from quire.server.http.acceptor import Acceptor
from quire.server.http.protocol import Site

BACKLOG = 2048
POLL_SECONDS = 0.05
"""How often a server that stops looks whether its connections have ended."""


class HttpServer:
    """Serves `site` on a listening socket. While it is idle, it does not wake up."""

    def __init__(self, site: Site, tls: ssl.SSLContext | None = None) -> None:
        self.site = site
        self._tls = tls
        self._stopped = asyncio.Event()
        self._grace = 0.0

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until `stop`; then close the socket and all connections."""
        loop = asyncio.get_running_loop()
        acceptor = Acceptor(self.site, listener, BACKLOG, self._tls)
        await self._stopped.wait()
        acceptor.close()
        for connection in list(self.site.connections):
            connection.shutdown()
        # Polled, because only the end of a server needs it.
        while (self.site.connections or self.site.tasks) and loop.time() < self._grace:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        for connection in list(self.site.connections):
            connection.transport.abort()
        for task in self.site.tasks:
            task.cancel()
        await asyncio.gather(*self.site.tasks, return_exceptions=True)

    def stop(self, grace: float = 0.0) -> None:
        """Stop accepting; connections in progress have `grace` seconds more to write their data.

        A later call may shorten that.
        """
        self._grace = asyncio.get_running_loop().time() + grace
        self._stopped.set()
