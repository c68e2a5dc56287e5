"""The client against a server that splits its bytes at awkward places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.bench.serving.http_client import (
    ConnectionLostError,
    EventParser,
    HTTPClient,
    HTTPStatusError,
    events,
)
from quire.core.errors import ConfigError

EVENTS = 'data: {"a": "é→😀"}\n\n: a comment\ndata: two\ndata: lines\nid: 7\n\ndata: [DONE]\n\n'
DATA = ['{"a": "é→😀"}', "two\nlines", "[DONE]"]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def fixed(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


async def data_of(client: HTTPClient, path: str, body: Any) -> list[str]:
    return [data for _, data in events(await client.exchange("POST", path, body))]


class Server:
    """Answers each request of a connection with the next of `answers`, `step` bytes at a time."""

    def __init__(self, answers: list[bytes], step: int, close: bool) -> None:
        self.answers = answers
        self.step = step
        self.close = close
        self.connections = 0
        self.requests: list[bytes] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split()[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                for i in range(0, len(answer), self.step):
                    writer.write(answer[i : i + self.step])
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes, step: int = 10**6, close: bool = False) -> AsyncIterator[Server]:
    server = Server(list(answers), step, close)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield server


@pytest.mark.parametrize("step", [1, 3, 10**6])
@pytest.mark.parametrize("chunk", [1, 2, 5, 10**6])
async def test_events_in_any_pieces(step: int, chunk: int) -> None:
    async with serving(HEAD + chunked(EVENTS.encode(), chunk), step=step) as server:
        client = HTTPClient(server.url + "/base/", {"Authorization": "Bearer k"})
        assert await data_of(client, "/v1/completions", {"n": 1}) == DATA
        await client.close()
    [request] = server.requests
    assert request.startswith(b"POST /base/v1/completions HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer k\r\n" in request
    assert request.endswith(b'\r\n\r\n{"n": 1}')


async def test_one_connection_serves_many_requests() -> None:
    body = HEAD + chunked(EVENTS.encode(), 7)
    async with serving(body, fixed(b"200 OK", b'{"x": 1}'), body) as server:
        client = HTTPClient(server.url)
        assert await data_of(client, "/a", {}) == DATA
        assert await client.json("GET", "/b") == {"x": 1}
        assert await data_of(client, "/c", {}) == DATA
        await client.close()
    assert server.connections == 1


async def test_a_closed_idle_connection_is_opened_again() -> None:
    async with serving(fixed(b"200 OK", b"1"), fixed(b"200 OK", b"2"), close=True) as server:
        client = HTTPClient(server.url)
        assert await client.json("GET", "/") == 1
        await asyncio.sleep(0.05)
        assert await client.json("GET", "/") == 2
        await client.close()
    assert server.connections == 2


async def test_connection_close_is_heeded() -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[1]"
    async with serving(answer, answer, close=True) as server:
        client = HTTPClient(server.url)
        assert await client.json("GET", "/") == [1]
        assert await client.json("GET", "/") == [1]
    assert server.connections == 2


async def test_an_error_status_carries_the_body_and_keeps_the_connection() -> None:
    async with serving(
        fixed(b"400 Bad Request", b'{"error": "top_p"}'), fixed(b"200 OK", b"1")
    ) as server:
        client = HTTPClient(server.url)
        with pytest.raises(HTTPStatusError, match=r"HTTP 400: .*top_p") as caught:
            await client.json("POST", "/", {})
        assert caught.value.status == 400
        assert await client.json("GET", "/") == 1
        await client.close()
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        HEAD + b"5\r\nda",
        HEAD + b"xyz\r\n",
        HEAD + b"3\r\nabcdef\r\n0\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
async def test_broken_responses(answer: bytes) -> None:
    async with serving(answer, close=True) as server:
        client = HTTPClient(server.url)
        with pytest.raises(ConnectionLostError):
            await client.json("GET", "/")


async def test_a_stream_left_early_closes_its_connection() -> None:
    half = (HEAD + chunked(EVENTS.encode(), 7))[:-5]
    async with serving(half, fixed(b"200 OK", b"3")) as server:
        client = HTTPClient(server.url)
        leaving = asyncio.create_task(client.exchange("POST", "/", {}))
        while server.answers[1:]:  # noqa: ASYNC110 - the server of this test has no event
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # it reads what came
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        assert await client.json("GET", "/") == 3
        await client.close()
    assert server.connections == 2


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", ""])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        HTTPClient(url)


LINE_ENDS: list[Callable[[str], str]] = [
    lambda s: s,
    lambda s: s.replace("\n", "\r\n"),
    lambda s: s.replace("\n", "\r"),
]


@pytest.mark.parametrize("line_ends", LINE_ENDS)
@given(st.data())
def test_the_parser_does_not_care_about_pieces(
    line_ends: Callable[[str], str], data: st.DataObject
) -> None:
    stream = line_ends(EVENTS).encode() + b":"
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=9).map(sorted))
    parser = EventParser()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [event for piece in pieces for event in parser.push(piece)] == DATA
