"""Streams over a real connection: what is written past the layers, and what a slow client costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from quire.core.outputs import CompletionOutput, Logprob, RequestOutput
from quire.frontend.output.stream import OutputSink
from quire.server.http import event_stream
from quire.server.http.event_stream import EventStream
from quire.server.turns import LOGPROBS_PER_TURN, Turns
from tests.listening import listening
from tests.unit.server.fake_engine import Running, running
from tests.unit.server.sse import events

POSITIONS = LOGPROBS_PER_TURN // 20


@asynccontextmanager
async def served(app: Running) -> AsyncIterator[str]:
    """The application behind a socket, as `serve` runs it."""
    async with listening(app.app, grace=60) as (_, (host, port)):
        yield f"http://{host}:{port}"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What goes to the socket directly."""
    chunks: list[bytes] = []
    original = EventStream._write

    def write(self: EventStream, data: bytes) -> None:
        chunks.append(data)
        original(self, data)

    monkeypatch.setattr(EventStream, "_write", write)
    return chunks


BODY: dict[str, Any] = {"model": "echo", "temperature": 0, "stream": True}
CHAT = {**BODY, "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_the_same_events_as_through_the_layers(
    written: list[bytes], n: int, prompt: str | list[str]
) -> None:
    body = {**BODY, "prompt": prompt, "n": n, "max_tokens": 20}
    body["stream_options"] = {"include_usage": True}
    async with running(seconds=0.002) as app:
        through_layers = await app.http.post("/v1/completions", json=body)
        assert not written
        async with served(app) as url, httpx.AsyncClient() as client:
            direct = await client.post(f"{url}/v1/completions", json=body)
    assert len(written) > 10
    assert text_of(direct.text) == text_of(through_layers.text)
    assert events(direct.text)[-1]["usage"] == events(through_layers.text)[-1]["usage"]


def text_of(stream: str) -> dict[int, str]:
    texts: dict[int, str] = {}
    for message in events(stream):
        for choice in message["choices"]:
            text = choice.get("text") or choice.get("delta", {}).get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + text
    return texts


@pytest.mark.parametrize("layers", [True, False])
async def test_a_stream_that_has_nothing_to_tell_says_that_it_lives(
    layers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "PING_SECONDS", 0.005)
    async with running(seconds=0.12) as app, served(app) as url, httpx.AsyncClient() as client:
        http, at = (app.http, "") if layers else (client, url)
        body = {**CHAT, "max_tokens": 3}
        told = (await http.post(f"{at}/v1/chat/completions", json=body)).text
        anthropic = (await http.post(f"{at}/v1/messages", json=body)).text
    assert told.startswith(": ping\n\n")
    assert told.count(": ping\n\n") >= 3
    assert text_of(told.replace(": ping\n\n", ""))[0]
    ping = 'event: ping\ndata: {"type":"ping"}\n\n'
    assert anthropic.startswith(ping)
    assert "message_stop" in anthropic


async def test_what_fails_after_a_ping_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "PING_SECONDS", 0.005)
    async with running(seconds=0.12) as app:
        response = await app.http.post("/v1/completions", json={**BODY, "prompt": [7]})
    assert response.status_code == 200
    told = response.text.replace(": ping\n\n", "")
    assert events(told)[-1]["error"]["code"] == "request_failed"


async def test_a_connection_serves_one_stream_after_the_other(written: list[bytes]) -> None:
    async with running(seconds=0.002) as app, served(app) as url, httpx.AsyncClient() as client:
        for _ in range(3):
            answer = await client.post(f"{url}/v1/chat/completions", json=CHAT)
            assert text_of(answer.text)[0].endswith("z")
            assert (await client.get(f"{url}/version")).status_code == 200
        assert app.engine.num_unfinished == 0
    assert written


async def test_an_http_1_0_client_gets_no_chunks(written: list[bytes]) -> None:
    async with running(seconds=0.002) as app, served(app) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({**CHAT, "max_tokens": 5}).encode()
        head = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = (await reader.read()).decode()
        writer.close()
    assert text_of(answer.partition("\r\n\r\n")[2])[0]
    assert not written


async def test_a_client_that_does_not_read_costs_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has not read waits merged, in one output, and reaches it when it reads again."""
    monkeypatch.setattr(event_stream, "MAX_BUFFERED_BYTES", 1)
    answer = Answer()
    stream = EventStream(answer)
    release = asyncio.Event()
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if message.get("body"):
            await release.wait()
            sent.append(message["body"])

    async def receive() -> Any:
        await asyncio.Event().wait()

    await stream.begin()
    task = asyncio.create_task(stream({"type": "http"}, receive, send))
    for i in range(1000):
        answer.sink.put(delta(f"{i} ", finished=i == 999))
        await asyncio.sleep(0)
    assert len(stream._waiting) == 1
    assert answer.num_held_up > 900
    release.set()
    await task
    assert len(sent) == 3  # what was under way, all the rest in one, and [DONE]
    assert b"".join(sent[:2]).decode() == "first " + "".join(f"{i} " for i in range(1000))
    assert answer.closed


def delta(text: str, *, finished: bool) -> RequestOutput:
    return RequestOutput("x", None, [1], [CompletionOutput(0, text, [1])], finished)


class Answer:
    """Its events are the texts as they are."""

    def __init__(self) -> None:
        self.closed = False
        self.num_held_up = 0

    def held_up(self) -> None:
        self.num_held_up += 1

    async def submit(self, sink: Any) -> None:
        self.sink: OutputSink = sink(0)
        self.sink.put(delta("first ", finished=False))

    def events(self, prompt: int, output: RequestOutput) -> Turns[bytes]:
        yield from ()
        return output.outputs[0].text.encode()

    def last_events(self) -> bytes:
        return b""

    def close(self) -> None:
        self.closed = True


async def test_log_probabilities_are_made_in_turns_and_hold_up_no_client() -> None:
    """Outputs with few are written at once, those with many by the stream's own task."""

    class Transport:
        def __init__(self) -> None:
            self.written = b""

        def write(self, data: bytes) -> None:
            self.written += data

        def is_closing(self) -> bool:
            return False

        def get_write_buffer_size(self) -> int:
            return 0

    class Long(Answer):
        def __init__(self) -> None:
            super().__init__()
            self.turns: list[int] = []

        def events(self, prompt: int, output: RequestOutput) -> Turns[bytes]:
            for _ in output.outputs[0].logprobs or ():
                self.turns.append(ticks)
                yield
            return (yield from super().events(prompt, output))

    answer, transport, ticks = Long(), Transport(), 0
    stream = EventStream(answer)
    await stream.begin()
    scope = {"type": "http", "http_version": "1.1", "extensions": {"quire.transport": transport}}
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    task = asyncio.create_task(stream(scope, send=send, receive=asyncio.Event().wait))
    for count in (POSITIONS, POSITIONS + 1):
        while stream._direct is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for end in (False, count > POSITIONS):
            output = delta(f"{count} ", finished=end)
            output.outputs[0].logprobs = [dict.fromkeys(range(20), Logprob(0.0))] * count
            answer.sink.put(output)
    while not task.done():
        ticks += 1
        await asyncio.sleep(0)
    assert transport.written.count(b"16 ") == 2
    assert sent == [b"", b"first ", b"17 17 ", b"data: [DONE]\n\n"]
    assert answer.turns[: 2 * POSITIONS] == [0] * 2 * POSITIONS
    assert len(set(answer.turns[2 * POSITIONS :])) > POSITIONS
    assert answer.num_held_up == 0


async def test_the_end_that_comes_between_turns_is_sent() -> None:
    class Slow(Answer):
        def events(self, prompt: int, output: RequestOutput) -> Turns[bytes]:
            if output.outputs[0].text == "held":
                self.sink.put(delta("last", finished=True))
                yield
                return b""
            return (yield from super().events(prompt, output))

    answer, sent = Slow(), list[bytes]()
    stream = EventStream(answer)
    await stream.begin()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent[-1] == b"first ":
            answer.sink.put(delta("held", finished=False))

    await stream({"type": "http"}, send=send, receive=asyncio.Event().wait)
    assert b"".join(sent) == b"first lastdata: [DONE]\n\n"


async def test_a_failure_in_mid_stream_is_an_event(written: list[bytes]) -> None:
    async with (
        running(seconds=0.005) as app,
        served(app) as url,
        httpx.AsyncClient() as client,
        client.stream(
            "POST", f"{url}/v1/completions", json={**BODY, "prompt": "a", "ignore_eos": True}
        ) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        app.core_client.die()
        rest = [line async for line in lines if line]
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "engine_restarting"
    assert rest[-1] == "data: [DONE]"
