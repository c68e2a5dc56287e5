"""uvicorn's HTTP protocol, and the transport under it for streams that write to it themselves."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from functools import lru_cache
from typing import Any, cast

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_TRANSPORT = "quire.transport"


class TransportProtocol(H11Protocol):
    """Tells each request the transport of its connection, as an ASGI extension, and its response
    the date, for which uvicorn would wake up every second."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app: Any = self.app

        async def app_with_transport(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {_TRANSPORT: transport}
            await app(scope, receive, send)

        self.app = app_with_transport

    def data_received(self, data: bytes) -> None:
        self.server_state.default_headers = _headers_of(int(time.time()))
        super().data_received(data)


@lru_cache(maxsize=1)
def _headers_of(second: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(second, usegmt=True).encode())]


def transport_of(scope: Scope) -> asyncio.WriteTransport | None:
    """Where chunks of a body may be written between two ASGI messages; None where they may not.

    The response must have no Content-Length: an HTTP/1.1 client gets it in chunks then.
    """
    transport = scope.get("extensions", {}).get(_TRANSPORT)
    if transport is None or scope["http_version"] != "1.1":
        return None
    return cast(asyncio.WriteTransport, transport)
