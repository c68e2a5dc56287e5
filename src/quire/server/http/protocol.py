"""uvicorn's HTTP protocol, with access to the transport for streams, and with limits.

The limits protect the server from one client on a connection, and from too many connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from quire.server.errors import ApiError, encode_error
from quire.server.http.linger import LINGER_SECONDS

_TRANSPORT = "quire.transport"

MAX_HEADER_BYTES = 65536
"""Most bytes of a request's line and headers, including the blank line."""
LINGER_BYTES = 128 * 2**20
"""Most bytes to read of a refused request; then the connection is closed."""
RECEIVE_SECONDS = 8.0
"""Time for a request's headers. Its body must send `RECEIVE_BYTES` in each such interval."""
RECEIVE_BYTES = 4096
WRITE_SECONDS = 60.0
"""A client with unread data must read something in each such interval."""


class TransportProtocol(H11Protocol):
    """Passes the connection's transport to each request, as an ASGI extension.

    It also sets each response's date, for which uvicorn would wake up every second. Clients that
    send too slowly or stop reading are disconnected. If there are too many connections, a new one
    replaces an idle one, or is refused.
    """

    def __init__(self, *args: Any, max_connections: int = sys.maxsize, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_connections = max_connections
        self.conn = _BoundedConnection(h11.SERVER, MAX_HEADER_BYTES)
        self._refused = False
        self._num_received = 0
        self._num_requests = 0
        self._receive_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections and not self._make_room():
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "The server has no connection left.")
            transport.close()  # at once: there are too many
            return
        self._expect_request()
        app: Any = self.app

        async def app_with_transport(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {_TRANSPORT: transport}
            await app(scope, receive, send)

        self.app = app_with_transport

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._receive_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._num_received += len(data)
            if self._num_received > LINGER_BYTES:
                self.transport.abort()
            return
        self.server_state.default_headers = _headers_of(int(time.time()))
        self._num_received += len(data)
        if self._receive_timer is None:
            self._expect_request()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._num_requests += 1
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None
        super().on_response_complete()

    def shutdown(self) -> None:
        if self._refused:
            self.transport.close()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Answer input that h11 cannot parse; uvicorn calls this while it handles the exception."""
        hint = getattr(sys.exception(), "error_status_hint", HTTPStatus.BAD_REQUEST)
        if hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            msg = f"The request's headers are longer than {MAX_HEADER_BYTES} bytes."
        self._refuse(HTTPStatus(hint), msg)

    @property
    def asks_nothing(self) -> bool:
        """Return whether no request is in progress; headers may be arriving."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's annotation lacks None
        return self._refused or cycle is None or cycle.response_complete

    def _make_room(self) -> bool:
        for other in self.connections:
            if other is not self and other.asks_nothing:  # type: ignore[union-attr]
                other.transport.abort()
                return True
        return False

    def _expect_request(self) -> None:
        self._receive_timer = self.loop.call_later(
            RECEIVE_SECONDS, self._check_request, self._num_received
        )

    def _check_request(self, received: int) -> None:
        """Check the progress of the request that the timer was set for."""
        self._receive_timer = None
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            if self.flow.read_paused or self._num_received - received >= RECEIVE_BYTES:
                self._expect_request()
                return
        elif self.conn.their_state is not h11.IDLE:
            return  # it is complete
        elif self._num_requests and not self.conn.trailing_data[0]:
            return  # uvicorn's own timer waits for the next
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The request did not come in time.")

    def _expect_reading(self) -> None:
        self._write_timer = self.loop.call_later(
            WRITE_SECONDS, self._check_reading, self.transport.get_write_buffer_size()
        )

    def _check_reading(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() >= unsent:
            self.transport.abort()
        else:
            self._expect_reading()

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer, unless an answer has begun, and close the connection.

        The client's remaining data is read and discarded, for at most `LINGER_SECONDS` and
        `LINGER_BYTES`. Closing a connection with unread data would reset it, and a reset destroys
        an answer that the client has not read yet.
        """
        scope: Scope | None = None
        if not self.asks_nothing:
            scope = cast(Scope, self.cycle.scope)
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._refused = True
        self._num_received = 0
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        _, body = encode_error(ApiError(status, message), scope)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (status, status.phrase.encode(), len(body), body)
        )
        with contextlib.suppress(NotImplementedError):  # TLS cannot be half-closed
            self.transport.write_eof()  # for clients that read until the end of the stream
        self.flow.resume_reading()


class _BoundedConnection(h11.Connection):
    """Refuses long headers in any split; h11 limits only incomplete ones."""

    def next_event(self) -> Any:
        before = len(self._receive_buffer)
        event = super().next_event()
        size = before - len(self._receive_buffer)
        if isinstance(event, h11.Request) and size > self._max_incomplete_event_size:
            raise h11.RemoteProtocolError(
                f"a head of {size} bytes",
                error_status_hint=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            )
        return event


@lru_cache(maxsize=1)
def _headers_of(second: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(second, usegmt=True).encode())]


def transport_of(scope: Scope) -> asyncio.WriteTransport | None:
    """Return the transport for chunks of a body between two ASGI messages; None if unknown.

    The response must have no Content-Length: an HTTP/1.1 client gets it in chunks then.
    """
    transport = scope.get("extensions", {}).get(_TRANSPORT)
    if transport is None or scope["http_version"] != "1.1":
        return None
    return cast(asyncio.WriteTransport, transport)
