"""Server-sent events, written inside the call that delivers a step's outputs.

A task, an asynchronous generator and two layers of ASGI per token would cost several times as much
as the event, on the cores that the kernels need. So an output becomes an event and goes to the
socket at once. If the client reads too slowly, the event takes long, or the transport is not known,
outputs wait, merged into one, for the stream's own task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from quire.core.outputs import RequestOutput
from quire.frontend.output.stream import OutputSink, merge
from quire.server.errors import encode_event, log_unexpected
from quire.server.http.connection import while_connected
from quire.server.http.protocol import transport_of
from quire.server.turns import LOGPROBS_PER_TURN, Turns, at_once, in_turns

logger = logging.getLogger(__name__)

MAX_BUFFERED_BYTES = 65536
"""With more unsent bytes than this, outputs wait until the client reads."""
OUTPUTS_PER_TURN = 64
PING_SECONDS = 15.0
"""Seconds of silence after which a stream sends a comment: proxies close a connection that is
silent for a minute, and a long prompt may take longer."""
DONE = b"data: [DONE]\n\n"
NOT_BUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers of a stream."""


class PromptSink:
    """Passes one prompt's outputs to a stream."""

    def __init__(self, stream: EventStream, prompt: int) -> None:
        self.put = partial(stream.put, prompt)
        self.fail = stream.fail


class StreamedAnswer(Protocol):
    """One request of one or more prompts, and its events."""

    async def submit(self, sink: Callable[[int], OutputSink]) -> None:
        """Start every prompt; its outputs go to `sink(prompt)`."""

    def prepare(self, prompt: int, output: RequestOutput) -> Turns[None]:
        """Build what an output's events need of the log-probabilities of a prompt, which may be
        long; comes before `events`, for outputs with `prompt_logprobs`."""

    def events(self, prompt: int, output: RequestOutput) -> Turns[bytes]:
        """Return the events, possibly none, for a DELTA output of a prompt."""

    def last_events(self) -> bytes:
        """Return the events after all outputs, before `[DONE]`."""

    def held_up(self) -> None:
        """Record that an output joined one that waits for the client to read."""

    def close(self) -> None:
        """Abort everything in progress."""


class Framing(NamedTuple):
    """An API's framing of events: errors, the end of a stream, and the comment that keeps a silent
    stream alive."""

    error: Callable[[Exception], bytes]
    done: bytes
    ping: bytes = b": ping\n\n"


OPENAI = Framing(encode_event, DONE)


class EventStream(Response):
    """The response of a `StreamedAnswer`.

    An exception becomes an error event, and the stream ends as its `Framing` says either way
    (`[DONE]`, as OpenAI's clients expect).
    """

    media_type = "text/event-stream"

    def __init__(self, answer: StreamedAnswer, framing: Framing = OPENAI) -> None:
        super().__init__(headers=NOT_BUFFERED)
        del self.headers["content-length"]
        self._answer = answer
        self._framing = framing
        self._num_running = 0
        self._waiting: dict[int, RequestOutput] = {}
        self._begun = b""
        self._error: Exception | None = None
        self._awake = asyncio.Event()
        self._transport: asyncio.WriteTransport | None = None
        self._direct: asyncio.WriteTransport | None = None
        """The transport while nothing else writes to it."""
        self._silent = True

    def sink(self, prompt: int) -> PromptSink:
        """Return the object that receives the engine's outputs of `prompt`."""
        self._num_running += 1
        return PromptSink(self, prompt)

    def put(self, prompt: int, output: RequestOutput) -> None:
        """Write an output's events now, or leave them to the task; wake it at the end."""
        self._num_running -= output.finished
        if _is_short(output) and self._can_write():
            try:
                if data := at_once(self._answer.events(prompt, output)):
                    self._write(data)
            except Exception as error:
                self._error = error
            if self._num_running and self._error is None:
                return
        elif (earlier := self._waiting.get(prompt)) is not None:
            self._waiting[prompt] = merge(earlier, output)
            if self._begun and self._client_waits():
                self._answer.held_up()
        else:
            self._waiting[prompt] = output
        self._awake.set()

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._awake.set()

    async def begin(self) -> None:
        """Start, and wait some time for the first output: before it, an error can be a status."""
        await self._answer.submit(self.sink)
        self._begun = await self._take() if await self._woken() else self._framing.ping
        if self._error is not None:
            raise self._error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(self._send_all(send, transport_of(scope)), receive)
        except (ClientDisconnect, OSError):
            logger.debug("a client left before the end of its stream")
        finally:
            self._answer.close()

    async def _send_all(self, send: Send, transport: asyncio.WriteTransport | None) -> None:
        self._transport = transport
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        data = self._begun
        try:
            while True:
                data += await self._take()
                if data:
                    await send(_body(data))
                    data = b""
                elif self._waiting:
                    continue  # they came between turns of `_take`
                elif self._error is not None:
                    raise self._error
                elif not self._num_running:
                    break
                else:
                    self._awake.clear()
                    self._direct = transport
                    data = b"" if await self._woken() else self._framing.ping
                    self._direct = None
            data = self._answer.last_events()
        except Exception as error:
            log_unexpected(error)
            data += self._framing.error(error)
        if data:
            await send(_body(data))
        await send(_body(self._framing.done, more=False))

    async def _woken(self) -> bool:
        """Wait until there is work; return False after `PING_SECONDS` of silence."""
        while True:
            self._silent = True
            try:
                async with asyncio.timeout(PING_SECONDS):
                    return await self._awake.wait()
            except TimeoutError:
                if self._silent:
                    return False

    async def _take(self) -> bytes:
        """Return the events of waiting outputs."""
        waiting, self._waiting = self._waiting, {}
        parts: list[bytes] = []
        for count, (prompt, output) in enumerate(waiting.items(), 1):
            if output.prompt_logprobs is not None:
                await in_turns(self._answer.prepare(prompt, output))
            parts.append(await in_turns(self._answer.events(prompt, output)))
            if count % OUTPUTS_PER_TURN == 0:
                await asyncio.sleep(0)
        return b"".join(parts)

    def _client_waits(self) -> bool:
        """Return whether the client has much to read; before the stream begins, it has nothing."""
        transport = self._transport
        return transport is None or transport.get_write_buffer_size() >= MAX_BUFFERED_BYTES

    def _can_write(self) -> bool:
        transport = self._direct
        return (
            transport is not None
            and not self._waiting
            and self._error is None
            and not transport.is_closing()
            and transport.get_write_buffer_size() < MAX_BUFFERED_BYTES
        )

    def _write(self, data: bytes) -> None:
        """Write one HTTP/1.1 chunk, bypassing the layers above."""
        assert self._direct is not None
        self._silent = False
        self._direct.write(b"%x\r\n%b\r\n" % (len(data), data))


async def open_stream(
    answer: StreamedAnswer, receive: Receive, framing: Framing = OPENAI
) -> EventStream:
    """Return a response that streams `answer`, once its first output is available.

    Raises:
        Exception: the request could not start, or failed before the first output.
        ClientDisconnect: the client left before it.
    """
    stream = EventStream(answer, framing)
    try:
        await while_connected(stream.begin(), receive)
    except BaseException:
        answer.close()
        raise
    return stream


def _is_short(output: RequestOutput) -> bool:
    """Return whether an output's events take less than a turn; log-probabilities take long."""
    if output.prompt_logprobs is not None:
        return False
    found = [each.logprobs for each in output.outputs if each.logprobs]
    return sum(len(position) for positions in found for position in positions) <= LOGPROBS_PER_TURN


def _body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}
