"""One server behind the router: its HTTP connections, and whether it is healthy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit
from weakref import WeakSet

import h11

from quire.core.errors import ConfigError, QuireError
from quire.system.patience import patient_timeout
from quire.system.records import dataclass

logger = logging.getLogger(__name__)

READ_BYTES = 65536
CONNECT_SECONDS = 5.0
HEALTH_SECONDS = 2.0
"""Time between two health checks."""
CHECK_SECONDS = 2.0
"""Time for one of them."""
SILENT_CHECKS = 5
"""Health checks in a row during which the server sent nothing at all, not even a part of an answer.
Then no request waits for it any more."""
MAX_IDLE = 64
"""Open connections without a request, per server."""
UNANSWERED = (OSError, EOFError, h11.ProtocolError, TimeoutError)
"""Failures of a connection."""

Headers = Sequence[tuple[bytes, bytes]]


class UpstreamError(QuireError):
    """The server did not answer, or its answer broke off."""

    code = "upstream_failed"


@dataclass(slots=True)
class Connection:
    """An open connection to a server; `used` says whether it has served a request."""

    upstream: Upstream
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    state: h11.Connection
    used: bool = False

    async def next_event(self) -> h11.Event:
        """Return the next part of the response. Raises one of `UNANSWERED`."""
        while (event := self.state.next_event()) is h11.NEED_DATA:
            self.state.receive_data(data := await self.reader.read(READ_BYTES))
            if data:
                self.upstream.heard()
        if isinstance(event, h11.ConnectionClosed):
            raise EOFError
        assert not isinstance(event, type)
        return event


class Upstream:
    """See above.

    Args:
        url: "http://host:port", with or without a path.

    Attributes:
        is_healthy: whether the latest health check was answered, and every connection since made.
            A request whose answer breaks off proves nothing: it may be the request's fault.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
            raise ConfigError(
                f"--replica is {url!r}, which is no http:// or https:// address.",
                fix="Write for example http://10.0.0.2:8000.",
                param="--replica",
            )
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path
        self._name = parts.netloc.rpartition("@")[2].encode()
        self._idle: list[Connection] = []
        self._open = WeakSet[asyncio.StreamWriter]()
        self._silent = 0
        self.is_healthy = False

    async def watch(self) -> None:
        """Check the server's health for ever."""
        while True:
            await self.check()
            await asyncio.sleep(HEALTH_SECONDS)

    async def check(self) -> None:
        """Ask for `/health` once; end the connections to a server that is silent for long."""
        healthy, self._silent = False, self._silent + 1
        with contextlib.suppress(UpstreamError, TimeoutError):
            async with patient_timeout(CHECK_SECONDS):
                answer = await self.ask("GET", "/health", [], b"")
                healthy = answer.status == 200
                with contextlib.closing(answer):
                    async for _ in answer.parts():
                        pass
        if healthy is not self.is_healthy:
            logger.warning("%s is %s", self.url, "ready" if healthy else "not ready")
        self.is_healthy = healthy
        if self._is_stuck:
            for writer in [*self._open]:
                writer.transport.abort()

    def heard(self) -> None:
        """Note that the server has sent something: it is not stuck."""
        self._silent = 0

    @property
    def _is_stuck(self) -> bool:
        return self._silent >= SILENT_CHECKS

    async def ask(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        """Send a request and return the head of the answer.

        Raises:
            UpstreamError: there is no answer. The request has had no output.
            h11.LocalProtocolError: a header or the target cannot be written.
        """
        own = [(b"host", self._name), (b"content-length", b"%d" % len(body))]
        head = h11.Request(method=method, target=self._prefix + target, headers=[*own, *headers])
        while True:
            try:
                connection = self._idle.pop() if self._idle else await self._connect()
            except UNANSWERED as error:
                self.is_healthy = False
                raise self._failed(error) from None
            try:
                return await self._send(connection, head, body)
            except UNANSWERED as error:
                connection.writer.close()
                # The server may have closed a used connection between two requests.
                if not connection.used or self._is_stuck:
                    raise self._failed(error) from None
            except BaseException:
                connection.writer.close()
                raise

    async def _send(self, connection: Connection, head: h11.Request, body: bytes) -> Answer:
        state, write = connection.state, connection.writer.write
        for part in (head, h11.Data(data=body), h11.EndOfMessage()):
            write(state.send(part) or b"")
        with contextlib.suppress(ConnectionError):  # it may have answered before it read all
            await connection.writer.drain()
        event = await connection.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = await connection.next_event()
        assert isinstance(event, h11.Response)
        return Answer(self, connection, event)

    async def _connect(self) -> Connection:
        async with patient_timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        self._open.add(writer)
        return Connection(self, reader, writer, h11.Connection(h11.CLIENT))

    def release(self, connection: Connection) -> None:
        """Take back a connection whose answer has ended, for another request."""
        state = connection.state
        if state.our_state is h11.DONE and state.their_state is h11.DONE:
            state.start_next_cycle()
            if len(self._idle) < MAX_IDLE:
                connection.used = True
                self._idle.append(connection)
                return
        connection.writer.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().writer.close()

    def _failed(self, error: BaseException) -> UpstreamError:
        return UpstreamError(f"{self.url} does not answer: {str(error) or type(error).__name__}.")


class Answer:
    """A server's answer: its head, and its body as it comes.

    Attributes:
        status: of HTTP.
        headers: without those of the connection, and those that the router's own server adds.
    """

    def __init__(self, upstream: Upstream, connection: Connection, head: h11.Response) -> None:
        self.status = head.status_code
        self.headers: list[tuple[bytes, bytes]] = [
            pair for pair in head.headers if pair[0] not in _OF_ANSWER
        ]
        self._upstream = upstream
        self._connection: Connection | None = connection

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body's parts as they come.

        Raises:
            UpstreamError: the answer broke off.
        """
        connection = self._connection
        assert connection is not None, "the answer was closed"
        try:
            while not isinstance(event := await connection.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
        except UNANSWERED:
            raise UpstreamError(f"The answer of {self._upstream.url} broke off.") from None
        self._connection = None
        self._upstream.release(connection)

    def close(self) -> None:
        """Drop the connection of an answer that is not complete: the server aborts the request."""
        if self._connection is not None:
            self._connection.writer.close()
            self._connection = None


OF_CONNECTION = frozenset(
    {
        *(b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"),
        *(b"proxy-authenticate", b"proxy-authorization", b"host", b"content-length", b"expect"),
    }
)
"""Headers of a request that belong to one connection, or that its sender writes."""
_OF_ANSWER = (OF_CONNECTION - {b"content-length"}) | {b"date", b"server"}
"""The same of an answer. Its length stays; its date is the sender's."""
