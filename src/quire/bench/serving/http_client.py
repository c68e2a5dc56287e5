"""A small HTTP/1.1 client: keep-alive, chunked bodies, server-sent events.

A load generator shares its cores with the server that it measures. So it only stores responses with
their arrival times, and parses them after the measurement, with h11.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, cast
from urllib.parse import urlsplit

import h11

from quire.core.errors import ConfigError, QuireError

_LAST_CHUNK = b"0\r\n\r\n"

Pieces = list[tuple[float, bytes]]
"""Reads from the socket: time of the monotonic clock, and bytes."""


class HTTPStatusError(QuireError):
    """The server answered with something other than 200."""

    code = "http_status"

    def __init__(self, status: int, body: str) -> None:
        self.status = status
        super().__init__(f"HTTP {status}: {' '.join(body.split())[:500]}")


class ConnectionLostError(QuireError, ConnectionError):
    """The connection ended before the response did."""

    code = "connection_lost"

    def __str__(self) -> str:
        return str(self.args[0])


class HTTPClient:
    """One connection to one server, opened when needed and kept open between requests.

    One request at a time. A request that fails, and one whose response is not read to its end,
    closes the connection; the next request opens another.

    Args:
        base_url: "http://host:port", with or without a path such as "/v1".
        headers: sent with every request.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        url = urlsplit(base_url)
        if url.scheme not in {"http", "https"} or not url.hostname:
            raise ConfigError(
                f"--base-url is {base_url!r}, which is no http:// or https:// address.",
                fix="Write for example http://127.0.0.1:8000.",
                param="--base-url",
            )
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._prefix = url.path.rstrip("/")
        self._headers = [("Host", url.netloc.rpartition("@")[2]), ("Accept", "*/*")]
        self._headers += list((headers or {}).items())
        self._connection: _Connection | None = None

    @property
    def pieces(self) -> Pieces:
        """Return the pieces of the response so far; about as many as it has chunks."""
        return [] if self._connection is None else self._connection.pieces

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        """Return the response's JSON. Raises as `text`."""
        return json.loads(await self.text(method, path, body))

    async def text(self, method: str, path: str, body: Any = None) -> str:
        """Return the response's text.

        Raises:
            HTTPStatusError: unless the status is 200.
            OSError, QuireError: where the connection or the protocol fails.
        """
        pieces = await self.exchange(method, path, body)
        return b"".join(data for _, data in content(pieces)).decode()

    async def exchange(self, method: str, path: str, body: Any = None) -> Pieces:
        """Return the raw response, for `content` and `events` to read.

        Raises:
            OSError, QuireError: where the connection fails.
        """
        connection = await self._send(method, path, body)
        complete = False
        try:
            while not (complete := _is_complete(connection.pieces)) and not connection.ended:
                await connection.more(_LAST_CHUNK if _is_chunked(connection.pieces) else b"")
            return connection.pieces
        finally:
            if not complete:
                await self.close()

    async def close(self) -> None:
        """Drop the connection; the next request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _send(self, method: str, path: str, body: Any) -> _Connection:
        payload = b"" if body is None else json.dumps(body).encode()
        headers = [*self._headers, ("Content-Length", str(len(payload)))]
        if payload:
            headers.append(("Content-Type", "application/json"))
        if self._connection is not None and self._connection.ended:
            await self.close()  # the server tired of waiting between two requests
        if self._connection is None:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(
                _Connection, self._host, self._port, ssl=self._tls
            )
        state = h11.Connection(h11.CLIENT)
        request = h11.Request(method=method, target=self._prefix + path, headers=headers)
        parts = (request, h11.Data(data=payload), h11.EndOfMessage())
        self._connection.send(b"".join(state.send(part) or b"" for part in parts))
        return self._connection


def ask(client: HTTPClient, method: str, path: str, body: Any = None) -> str:
    """Return the text of a response over a connection that ends then. Raises as `text`."""

    async def once() -> str:
        try:
            return await client.text(method, path, body)
        finally:
            await client.close()

    return asyncio.run(once())


class _Connection(asyncio.Protocol):
    """Keeps what comes, and wakes its reader as seldom as it may."""

    def __init__(self) -> None:
        self.pieces: Pieces = []
        """Of the response to the latest request."""
        self.ended = False
        self._until = b""
        self._waiter: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, data: bytes) -> None:
        self.pieces = []
        self._transport.write(data)

    async def more(self, until: bytes) -> None:
        """Wait for a piece that may end with `until`, or for the end of the connection."""
        if not self.ended:
            self._until = until
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def close(self) -> None:
        self._transport.close()
        await self._closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.monotonic(), data))
        # A short piece may be the second part of a split end.
        if len(data) < len(self._until) or data.endswith(self._until):
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._wake()
        if not self._closed.done():
            self._closed.set_result(None)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def content(pieces: Pieces) -> Iterator[tuple[float, bytes]]:
    """Yield the parts of a response's body with their arrival times.

    Raises:
        HTTPStatusError: the status is not 200.
        ConnectionLostError: the response is incomplete or not HTTP.
    """
    status, error = 0, bytearray()
    for moment, event in _parsed(pieces, ended=True):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            if status == 200:
                yield moment, bytes(event.data)
            else:
                error += event.data
    if status != 200:
        raise HTTPStatusError(status, error.decode(errors="replace"))


def events(pieces: Pieces) -> Iterator[tuple[float, str]]:
    """Yield the data of each server-sent event with the time when it was complete. Raises like
    `content`."""
    parser = EventParser()
    for moment, data in content(pieces):
        for event in parser.push(data):
            yield moment, event


def _parsed(pieces: Pieces, *, ended: bool) -> Iterator[tuple[float, Any]]:
    """Yield h11's events up to the response's end; `ended`: the connection was closed after it."""
    state = h11.Connection(h11.CLIENT)
    state.send(h11.Request(method="GET", target="/", headers=[("Host", "")]))
    state.send(h11.EndOfMessage())
    end = [(pieces[-1][0] if pieces else 0.0, b"")] if ended else []
    try:
        for moment, data in chain(pieces, end):
            state.receive_data(data)
            while (event := state.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.ConnectionClosed):
                    raise ConnectionLostError("The server closed the connection.")
                yield moment, event
                if isinstance(event, h11.EndOfMessage):
                    return
    except h11.RemoteProtocolError as error:
        raise ConnectionLostError(f"The response is incomplete or not HTTP: {error}.") from error


def _is_chunked(pieces: Pieces) -> bool:
    """Return whether the head is complete and announces chunks."""
    head, end, _ = b"".join(data for _, data in pieces[:8]).partition(b"\r\n\r\n")
    return bool(end) and b"\r\ntransfer-encoding: chunked" in head.lower()


def _is_complete(pieces: Pieces) -> bool:
    """Return whether the response is complete.

    Raises:
        ConnectionLostError: it is not HTTP.
    """
    if _is_chunked(pieces):
        return _has_last_chunk(b"".join(data for _, data in pieces))
    return any(isinstance(event, h11.EndOfMessage) for _, event in _parsed(pieces, ended=False))


def _has_last_chunk(response: bytes) -> bool:
    position = response.index(b"\r\n\r\n") + 4
    while (end := response.find(b"\r\n", position)) >= 0:
        try:
            size = int(response[position:end].partition(b";")[0], 16)
        except ValueError:
            raise ConnectionLostError("The response is not HTTP: a chunk has no size.") from None
        if size == 0:
            return response.endswith(b"\r\n\r\n")
        position = end + 2 + size + 2
    return False


class EventParser:
    """Parses a `text/event-stream` whose pieces may end anywhere.

    Lines end in LF, CR or CRLF. An empty line ends an event. Several `data:` lines are joined with
    LF. Comments and other fields are dropped.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._rest = ""
        self._data: list[str] = []

    def push(self, part: bytes) -> list[str]:
        """Return the data of the events that `part` completes."""
        self._rest += self._decode(part)
        # A CR at the end may be the first half of a CRLF, so it waits for the next piece.
        held = "\r" if self._rest.endswith("\r") else ""
        text = self._rest.removesuffix("\r") if held else self._rest
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = rest + held
        events: list[str] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append("\n".join(self._data))
                self._data = []
            elif line.startswith("data:"):
                self._data.append(line.removeprefix("data:").removeprefix(" "))
        return events
