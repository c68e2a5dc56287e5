"""A small HTTP/1.1 client on asyncio streams: keep-alive, chunked bodies, server-sent events.

h11 (which uvicorn brings) parses the protocol; nothing else stands between the socket and the
clock, so that what is measured is the server.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import urlsplit

import h11

from quire.core.errors import ConfigError, QuireError

_READ_BYTES = 65536


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
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._state = h11.Connection(h11.CLIENT)

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        """The response's JSON.

        Raises:
            HTTPStatusError: unless the status is 200.
            OSError, QuireError: where the connection or the protocol fails.
        """
        parts = [part async for part in self._request(method, path, body)]
        return json.loads(b"".join(parts))

    async def events(self, path: str, body: Any) -> AsyncGenerator[str]:
        """POST `body`; yield each server-sent event's data as it arrives. Raises as `json`."""
        parser = EventParser()
        # A generator left early must close its connection now, not when it is collected.
        async with aclosing(self._request("POST", path, body)) as parts:
            async for part in parts:
                for event in parser.push(part):
                    yield event

    async def close(self) -> None:
        """Drop the connection; the next request opens another."""
        streams, self._streams = self._streams, None
        self._state = h11.Connection(h11.CLIENT)
        if streams is not None:
            streams[1].close()
            with suppress(OSError):
                await streams[1].wait_closed()

    async def _request(self, method: str, path: str, body: Any) -> AsyncGenerator[bytes]:
        """Send a request, check its status, yield its body's pieces as they arrive."""
        done = False
        try:
            await self._send(method, path, body)
            status, error = 0, bytearray()
            while not done:
                event = await self._next_event()
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    if status == 200:
                        yield bytes(event.data)
                    else:
                        error += event.data
                elif isinstance(event, h11.EndOfMessage):
                    done = True
                elif isinstance(event, h11.ConnectionClosed):
                    raise ConnectionLostError("The server closed the connection.")
            if self._state.our_state is h11.DONE and self._state.their_state is h11.DONE:
                self._state.start_next_cycle()
            else:
                await self.close()
            if status != 200:
                raise HTTPStatusError(status, error.decode(errors="replace"))
        except h11.RemoteProtocolError as error_seen:
            raise ConnectionLostError(
                f"The response broke off, or is not HTTP: {error_seen}."
            ) from error_seen
        finally:
            if not done:
                await self.close()

    async def _send(self, method: str, path: str, body: Any) -> None:
        payload = b"" if body is None else json.dumps(body).encode()
        headers = [*self._headers, ("Content-Length", str(len(payload)))]
        if payload:
            headers.append(("Content-Type", "application/json"))
        if self._streams is not None and self._streams[0].at_eof():
            await self.close()  # the server tired of waiting between two requests
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        _, writer = self._streams
        request = h11.Request(method=method, target=self._prefix + path, headers=headers)
        writer.write(self._state.send(request) or b"")
        writer.write(self._state.send(h11.Data(data=payload)) or b"")
        writer.write(self._state.send(h11.EndOfMessage()) or b"")
        await writer.drain()

    async def _next_event(self) -> Any:
        """h11's next event, reading from the socket as long as it needs data."""
        assert self._streams is not None
        reader, _ = self._streams
        while (event := self._state.next_event()) is h11.NEED_DATA:
            self._state.receive_data(await reader.read(_READ_BYTES))
        return event


class EventParser:
    """Bytes of a `text/event-stream` in, the data of each complete event out.

    The WHATWG's format: lines end in LF, CR or CRLF, an empty line ends an event, several `data:`
    lines are joined with LF, comments and other fields are dropped. Pieces may end anywhere.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._rest = ""
        self._data: list[str] = []

    def push(self, part: bytes) -> list[str]:
        """The data of the events that `part` completes."""
        self._rest += self._decode(part)
        # A CR at the end may be the first half of a CRLF: it waits for the next piece.
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
