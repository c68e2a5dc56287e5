"""HTTP/1.1 connections for an ASGI application, on h11 and asyncio.

Streams get access to the transport. Limits protect the server from one client on a connection, and
from too many connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import sys
from dataclasses import field
from http import HTTPStatus
from typing import cast
from urllib.parse import unquote

import h11
from starlette.types import ASGIApp, Scope

from quire.server.errors import LINGER_SECONDS, ApiError, encode_error
from quire.server.http.bounded import BoundedConnection
from quire.server.http.exchange import Exchange, Flow
from quire.system.records import dataclass

_TRANSPORT = "quire.transport"
_AUTHORITY = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
"""Begins a target in absolute form, as clients send it to proxies."""
MAX_HEADER_BYTES = 65536
"""Most bytes of a request's line and headers, including the blank line."""
LINGER_BYTES = 128 * 2**20
"""Most bytes to read of a refused request; then the connection is closed."""
KEEP_ALIVE_SECONDS = 75.0
"""How long a connection stays open without another request. Clients and proxies that keep theirs
for 5 s (httpx) to 60 s (nginx, load balancers) then close them first. A request that meets the
server's close is lost."""
RECEIVE_SECONDS = 8.0
"""Time for a request's headers. Its body must send `RECEIVE_BYTES` in each such interval."""
RECEIVE_BYTES = 4096
WRITE_SECONDS = 60.0
"""A client with unread data must read something in each such interval."""
TICKS = 4
"""Timers in each of these intervals. A server that was stopped itself, or whose machine was, has
missed only one, so that clients get some time after it."""
MAX_SPARES = 8
"""Maximum connections beyond the limit. Each may ask for the server's health, nothing else."""
SPARE_SECONDS = 1.0
"""Time for the request of a connection beyond the limit, and for reading its refusal."""
_HEALTH = "/health"
TURN_EVENTS = 64
"""Parts of a body that are handled before others have their turn: each costs 15 µs, and a client
may send bodies in chunks of one byte."""


@dataclass(slots=True)
class Site:
    """What all connections of a server share.

    Attributes:
        connections: the oldest first.
        num_spares: connections beyond the limit.
        tasks: the application's runs.
    """

    app: ASGIApp
    max_connections: int = sys.maxsize
    connections: dict[HttpProtocol, None] = field(default_factory=dict)
    num_spares: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def close_idle(self, but: HttpProtocol | None = None) -> bool:
        """Close the oldest idle connection, except `but` and spares; return if there was one."""
        for each in self.connections:
            if each is not but and each.is_idle:
                each.transport.abort()
                return True
        return False


class HttpProtocol(asyncio.Protocol):
    """A client's connection: one request after another, each an `Exchange`.

    Clients that send too slowly or stop reading are disconnected. If there are too many
    connections, a new one replaces an idle one. Without idle ones it is a spare: it gets the
    server's health, or 503.

    Args:
        is_spare: it has the last file descriptor.
    """

    transport: asyncio.Transport
    flow: Flow

    def __init__(self, site: Site, *, is_spare: bool = False) -> None:
        self.conn = BoundedConnection(h11.SERVER, MAX_HEADER_BYTES)
        self._site = site
        self._loop = asyncio.get_running_loop()
        self._exchange: Exchange | None = None
        self._refused = False
        self._is_spare = is_spare
        self._num_received = 0
        self._num_requests = 0
        self._receive_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.flow = Flow(self.transport)
        self._site.connections[self] = None
        if len(self._site.connections) > self._site.max_connections:
            self._is_spare |= not self._site.close_idle(but=self)
        if self._is_spare:
            self._site.num_spares += 1
            if self._site.num_spares > MAX_SPARES:
                self._refuse_spare()
                transport.close()  # at once: there are too many
                return
        self._of_connection: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "server": _address(transport, "sockname"),
            "client": _address(transport, "peername"),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "root_path": "",
            "extensions": {_TRANSPORT: transport},
        }
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._site.connections.pop(self, None)
        self._site.num_spares -= self._is_spare
        for timer in (self._receive_timer, self._write_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        if self._exchange is not None:
            self._exchange.disconnect()
        self.flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        self._num_received += len(data)
        if self._refused:
            if self._num_received > LINGER_BYTES:
                self.transport.abort()
            return
        self._stay()
        if self._receive_timer is None:
            self._expect_request()
        self.conn.receive_data(data)
        self._handle_events()

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def shutdown(self) -> None:
        """Close the connection, after the response in progress if there is one."""
        if self.asks_nothing:
            self.transport.close()
        elif self._exchange is not None:
            self._exchange.keep_alive = False

    @property
    def asks_nothing(self) -> bool:
        """Return whether no request is in progress; headers may be arriving."""
        return self._refused or self._exchange is None or self._exchange.complete

    @property
    def is_idle(self) -> bool:
        """Return whether another connection may have its place."""
        return self.asks_nothing and not (self._is_spare or self.transport.is_closing())

    def _handle_events(self) -> None:
        """Handle what h11 has parsed; read no more until all of it is handled."""
        for _ in range(TURN_EVENTS):
            try:
                event = self.conn.next_event()
            except h11.RemoteProtocolError as error:
                status = HTTPStatus(error.error_status_hint)
                message = f"The request is not valid HTTP/1.1: {error}."
                if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                    message = f"The request's headers are longer than {MAX_HEADER_BYTES} bytes."
                self._refuse(status, message)
                return
            if isinstance(event, h11.Request):
                self._begin(event)
                if self._refused:
                    return
                continue
            if event is h11.PAUSED:  # another request waits for the end of this one
                self.flow.read(False)
                return
            if not isinstance(event, h11.Data | h11.EndOfMessage):
                return
            assert self._exchange is not None
            if isinstance(event, h11.Data):
                if not self._exchange.complete:
                    self._exchange.feed(event.data)
            elif not self._exchange.complete:
                self._exchange.end_body()
            elif self.conn.our_state is h11.DONE:  # the answer came before the body's end
                self.conn.start_next_cycle()
        self.flow.hold(True)
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Handle the rest of what was received."""
        self.flow.hold(False)
        if not (self._refused or self.transport.is_closing()):
            self._handle_events()

    def _begin(self, request: h11.Request) -> None:
        """Run the application for a request whose headers have arrived."""
        self._stay()
        target = request.target
        if absolute := _AUTHORITY.match(target):
            target = b"/" + target[absolute.end() :].removeprefix(b"/")
        raw_path, _, query = target.partition(b"?")
        path = unquote(raw_path.decode())
        if self._is_spare and path != _HEALTH:
            self._refuse_spare()
            return
        scope = {
            **self._of_connection,
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": list(request.headers),
        }
        exchange = Exchange(scope, self.conn, self.transport, self.flow, self._on_complete)
        exchange.keep_alive = not self._is_spare
        self._exchange = exchange
        task = self._loop.create_task(exchange.run(self._site.app))
        self._site.tasks.add(task)
        task.add_done_callback(self._site.tasks.discard)

    def _on_complete(self) -> None:
        """Get ready for the next request."""
        self._num_requests += 1
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None
        if self.transport.is_closing():
            return
        self._stay()
        self._idle_timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._close_idle)
        self.flow.read(True)
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE:
            self.conn.start_next_cycle()
            self._handle_events()

    def _close_idle(self) -> None:
        """Close the connection, unless a request has just come: closing would reset it."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), select.POLLIN)
        if poll.poll(0):
            self._idle_timer = self._loop.call_later(SPARE_SECONDS, self._close_idle)
        else:
            self.transport.close()

    def _stay(self) -> None:
        """Do not close the connection for want of a request."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _expect_request(self, received: int | None = None, ticks: int = TICKS) -> None:
        seconds = SPARE_SECONDS if self._is_spare else RECEIVE_SECONDS
        received = self._num_received if received is None else received
        self._receive_timer = self._loop.call_later(
            seconds / TICKS, self._check_request, received, ticks - 1
        )

    def _check_request(self, received: int, ticks: int) -> None:
        """Check the progress of the request that the timer was set for; `ticks` are left."""
        self._receive_timer = None
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            if not self.flow.is_reading or self._num_received - received >= RECEIVE_BYTES:
                self._expect_request()
                return
        elif self.conn.their_state is not h11.IDLE:
            return  # it is complete
        elif self._num_requests and not self.conn.trailing_data[0]:
            return  # the idle timer waits for the next
        if ticks:
            self._expect_request(received, ticks)
        elif self._is_spare:
            self._refuse_spare()
            self.transport.close()
        else:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The request did not come in time.")

    def _expect_reading(self, unsent: int | None = None, ticks: int = TICKS) -> None:
        unsent = self.transport.get_write_buffer_size() if unsent is None else unsent
        self._write_timer = self._loop.call_later(
            WRITE_SECONDS / TICKS, self._check_reading, unsent, ticks - 1
        )

    def _check_reading(self, unsent: int, ticks: int) -> None:
        if self.transport.get_write_buffer_size() < unsent:
            self._expect_reading()
        elif ticks:
            self._expect_reading(unsent, ticks)
        else:
            self.transport.abort()

    def _refuse_spare(self) -> None:
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "The server has no connection left.")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer, unless an answer has begun, and close the connection.

        The client's remaining data is read and discarded, for at most `LINGER_SECONDS` and
        `LINGER_BYTES`. Closing a connection with unread data would reset it, and a reset destroys
        an answer that the client has not read yet.
        """
        scope: Scope | None = None
        if self._exchange is not None and not self._exchange.complete:
            scope = self._exchange.scope
            if self._exchange.started:
                self.transport.abort()
                return
            self._exchange.disconnect()
        self._refused = True
        self._num_received = 0
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = self._loop.call_later(
            SPARE_SECONDS if self._is_spare else LINGER_SECONDS, self.transport.abort
        )
        _, body = encode_error(ApiError(status, message), scope)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (status, status.phrase.encode(), len(body), body)
        )
        with contextlib.suppress(NotImplementedError):  # TLS cannot be half-closed
            self.transport.write_eof()  # for clients that read until the end of the stream
        self.flow.read(True)


def _address(transport: asyncio.BaseTransport, name: str) -> tuple[str, int] | None:
    """Return host and port of an end of the connection; None for a Unix socket."""
    found = transport.get_extra_info(name)
    return found[:2] if isinstance(found, tuple) else None


def transport_of(scope: Scope) -> asyncio.WriteTransport | None:
    """Return the transport for chunks of a body between two ASGI messages; None if unknown.

    The response must have no Content-Length: an HTTP/1.1 client gets it in chunks then.
    """
    transport = scope.get("extensions", {}).get(_TRANSPORT)
    if transport is None or scope["http_version"] != "1.1":
        return None
    return cast(asyncio.WriteTransport, transport)
