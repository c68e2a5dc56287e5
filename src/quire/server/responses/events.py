"""A response's stored events, for clients that reconnect."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from itertools import islice

from starlette.responses import Response, StreamingResponse

from quire.server.errors import ApiError, describe, invalid
from quire.server.http import event_stream
from quire.server.http.json_text import named_event

MAX_LOG_BYTES = 4 * 2**20
"""Per response; beyond it the oldest events are dropped."""


class EventLog:
    """Events numbered from 0. Several readers may read from any number on.

    Attributes:
        size: bytes stored.
        ended: no more events follow.
    """

    def __init__(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.size = 0
        self.ended = False
        self._max_bytes = max_bytes
        self._first = 0
        self._events: deque[bytes] = deque()
        self._more = asyncio.Event()

    @property
    def end(self) -> int:
        """Return the number of the next event."""
        return self._first + len(self._events)

    def add(self, events: Iterable[bytes], *, last: bool = False) -> None:
        """Append events; `last` ends the log."""
        for event in events:
            self._events.append(event)
            self.size += len(event)
        while self.size > self._max_bytes and len(self._events) > 1:
            self.size -= len(self._events.popleft())
            self._first += 1
        self.ended |= last
        more, self._more = self._more, asyncio.Event()
        more.set()

    def since(self, number: int) -> bytes:
        """Return the events from `number` on, joined.

        Raises:
            ApiError: 400, some of them were dropped.
        """
        if number < self._first:
            raise invalid(
                f"Events before number {self._first} are no longer stored; start after "
                f"{self._first}, or ask for the response without stream.",
                "starting_after",
            )
        return b"".join(islice(self._events, number - self._first, None))

    async def wait(self, number: int) -> None:
        """Return once event `number` exists, or the log has ended."""
        while self.end <= number and not self.ended:
            await self._more.wait()


def stream_events(log: EventLog, number: int) -> Response:
    """Return a stream of the events from `number` to the last. Clients may reconnect.

    Raises:
        ApiError: as `EventLog.since`.
    """
    log.since(number)
    headers = event_stream.NOT_BUFFERED
    return StreamingResponse(_events(log, number), 200, headers, "text/event-stream")


async def _events(log: EventLog, number: int) -> AsyncIterator[bytes]:
    try:
        while True:
            try:
                async with asyncio.timeout(event_stream.PING_SECONDS):
                    await log.wait(number)
            except TimeoutError:
                yield event_stream.OPENAI.ping
                continue
            data = log.since(number)
            number = max(number, log.end)
            if data:
                yield data
            elif log.ended:
                return
    except ApiError as error:  # a slow reader: its next events were dropped
        info = describe(error)[1].error
        fields = {"code": info.code, "message": info.message, "param": info.param}
        yield named_event("error", **fields, sequence_number=number)
