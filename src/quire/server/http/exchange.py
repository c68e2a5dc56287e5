"""One request and its response: ASGI on one side, h11's events on the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import h11
from starlette.types import ASGIApp, Message, Scope

logger = logging.getLogger(__name__)

MAX_UNREAD_BYTES = 65536
"""With more of a body waiting for the application, the connection is not read."""
WRITTEN_BYTES = 2**18
"""Maximum bytes of one write. Other requests run between writes."""
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Flow:
    """Back-pressure of a connection: pauses its input, and awaits its output."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.is_reading = True
        self._wanted, self._held = True, False
        self._transport = transport
        self._writable = asyncio.Event()
        self._writable.set()

    def read(self, wanted: bool) -> None:
        """Read from the connection, or stop reading from it."""
        self._wanted = wanted
        self._apply()

    def hold(self, held: bool) -> None:
        """Stop reading, whatever is wanted, or stop no more."""
        self._held = held
        self._apply()

    def _apply(self) -> None:
        reads = self._wanted and not self._held
        if reads is not self.is_reading:
            self.is_reading = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def until_writable(self) -> None:
        """Wait until the client has read enough, or has gone."""
        if not self._writable.is_set():
            await self._writable.wait()


class Exchange:
    """Runs the application for one request.

    Args:
        on_complete: called after the response's last byte was written.

    Attributes:
        started: the response has a status.
        complete: the response is written.
        keep_alive: another request may follow on the connection.
    """

    def __init__(
        self,
        scope: Scope,
        connection: h11.Connection,
        transport: asyncio.Transport,
        flow: Flow,
        on_complete: Callable[[], None],
    ) -> None:
        self.scope = scope
        self.started = False
        self.complete = False
        self.keep_alive = True
        self._connection = connection
        self._transport = transport
        self._flow = flow
        self._on_complete = on_complete
        self._head = b""
        self._body = bytearray()
        self._more_body = True
        self._disconnected = False
        self._expects_continue = connection.they_are_waiting_for_100_continue
        self._changed = asyncio.Event()

    def feed(self, data: bytes) -> None:
        """Add received bytes to the request's body."""
        self._body += data
        if len(self._body) > MAX_UNREAD_BYTES:
            self._flow.read(False)
        self._changed.set()

    def end_body(self) -> None:
        self._more_body = False
        self._changed.set()

    def disconnect(self) -> None:
        """Let the application know that nobody reads its response any more."""
        self._disconnected = True
        self._changed.set()

    async def run(self, app: ASGIApp) -> None:
        """Call the application, and answer 500 if it fails without an answer."""
        try:
            await app(self.scope, self.receive, self.send)
            if not (self.complete or self._disconnected):
                raise RuntimeError("the application returned before its response was complete")
        except Exception:
            logger.exception("the application failed")
            if self.started:
                self._transport.close()
            else:
                await self._fail()
        except asyncio.CancelledError:  # the server stops
            self._transport.abort()
            raise

    async def receive(self) -> Message:
        """Return ASGI's next message of the request."""
        if self._expects_continue and not self._transport.is_closing():
            self._expects_continue = False
            self._write(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
        if not (self._disconnected or self.complete):
            self._flow.read(True)
            await self._changed.wait()
            self._changed.clear()
        if self._disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def send(self, message: Message) -> None:
        """Write ASGI's next message of the response; nothing if the client has gone."""
        if not self._disconnected:
            await self._flow.until_writable()
        if self._disconnected:
            return
        match message["type"]:
            case "http.response.start" if not self.started:
                self._start(message)
            case "http.response.body" if self.started and not self.complete:
                body = b"" if self.scope["method"] == "HEAD" else message.get("body", b"")
                at = 0
                while len(body) - at > WRITTEN_BYTES:
                    self._write(h11.Data(data=body[at : at + WRITTEN_BYTES]))
                    at += WRITTEN_BYTES
                    await asyncio.sleep(0)
                    await self._flow.until_writable()
                    if self._disconnected:
                        return
                self._write(h11.Data(data=body[at:]), last=not message.get("more_body", False))
            case kind:
                raise RuntimeError(f"the application sent {kind} out of order")

    def _start(self, message: Message) -> None:
        self.started = True
        self._expects_continue = False
        headers = [(b"date", _date(int(time.time()))), *message.get("headers", ())]
        status: int = message["status"]
        response = h11.Response(
            status_code=status, headers=headers, reason=_PHRASES.get(status, "")
        )
        if any(name == b"content-length" for name, _ in headers):
            self._head = self._connection.send(response) or b""  # goes out with the body
        else:  # a stream may write past this object from now on (`transport_of`)
            self._write(response)

    def _write(self, event: h11.Event, *, last: bool = False) -> None:
        """Write an event, behind the head that waits for it; `last` ends the response."""
        data = self._head + (self._connection.send(event) or b"")
        self._head = b""
        if last:
            self.complete = True
            data += self._connection.send(h11.EndOfMessage()) or b""
        if data:
            self._transport.write(data)
        if not last:
            return
        self._changed.set()
        if self._connection.our_state is h11.MUST_CLOSE or not self.keep_alive:
            self._connection.send(h11.ConnectionClosed())
            self._transport.close()
        self._on_complete()

    async def _fail(self) -> None:
        text = b"Internal Server Error"
        headers = [(b"content-length", b"%d" % len(text)), (b"connection", b"close")]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": text})


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
