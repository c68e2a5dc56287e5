"""Rows 14, 15, 17, 18, 19 and 32: what a client can do to a connection, and with many of them."""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest
from starlette.routing import Route

from quire.server.http import protocol
from quire.server.http.bounded import BoundedConnection
from quire.server.http.protocol import MAX_HEADER_BYTES
from tests.faults.requests import assert_no_secret
from tests.faults.sites import HEAD, PATIENCE, Passing, Site, site, until
from tests.unit.server.test_turns import LoopTurns


@pytest.mark.parametrize("complete", [False, True])
async def test_row_14_a_header_of_64_mib(complete: bool, where: Site) -> None:
    client = await where.connect()
    await client.send(b"GET /health HTTP/1.1\r\nHost: x\r\nX: ")
    for _ in range(64):
        await client.send(b"a" * 2**20)
    if complete:
        await client.send(b"\r\n\r\n")
    answer = await client.rest()
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")
    client.close()
    await where.assert_unharmed()


async def test_row_14_a_header_just_too_long_is_answered(where: Site) -> None:
    client = await where.connect()
    await client.send(b"GET /health HTTP/1.1\r\nX: " + b"a" * (MAX_HEADER_BYTES + 1))
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert str(MAX_HEADER_BYTES) in json.loads(body)["error"]["message"]
    client.close()
    await where.assert_unharmed()


async def test_row_15_200_000_headers(where: Site) -> None:
    client = await where.connect()
    await client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n")
    for start in range(0, 200_000, 1000):
        await client.send(b"".join(b"X-%d: a\r\n" % i for i in range(start, start + 1000)))
    await client.send(b"\r\n")
    answer = await client.rest()
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")
    client.close()
    await where.assert_unharmed()


async def test_targets_may_be_absolute(where: Site) -> None:
    for target in (b"http://x/health", b"HTTPS://x:1/health?a=/", b"http://x/", b"http://x"):
        client = await where.connect()
        await client.send(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await client.rest()
        status = 200 if b"health" in target.lower() else (await where.get("/")).status_code
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        client.close()


async def test_an_empty_line_before_a_request(where: Site) -> None:
    """A client may send one behind a body (RFC 9112, 2.2)."""
    get = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    for parts in ([b"\r\n" + get], [b"\r\n", get], [b"\r", b"\n", get]):
        client = await where.connect()
        received = 0
        for part in parts:
            await client.send(part)
            received += len(part)
            await where.received(received)
        await client.send(b"\r\n\r\n" + get + b"Connection: close\r\n\r\n")
        assert (await client.rest()).count(b"HTTP/1.1 200 ") == 2
        client.close()
        await until(lambda: not where.connections)
    client = await where.connect()
    await client.send(b"\r\n\r\n" + get + b"\r\n")
    assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
    client.close()


async def test_an_empty_line_alone_keeps_no_connection(
    pass_time: Passing,
    where: Site,
) -> None:
    client = await where.connect()
    await client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.answer()
    size = sum(each._num_received for each in where.connections)
    await client.send(b"\r\n")
    await where.received(size + 2)
    await pass_time(protocol.RECEIVE_SECONDS)
    await client.rest()
    client.close()
    await until(lambda: not where.connections)


@pytest.mark.parametrize(
    ("sent", "status", "why"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505", b"its version is 2.0"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400", b"Missing mandatory Host: header"),
    ],
)
async def test_what_is_not_http_1_is_refused_with_the_reason(
    sent: bytes, status: bytes, why: bytes, where: Site
) -> None:
    client = await where.connect()
    await client.send(sent)
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert why in answer
    client.close()
    await where.assert_unharmed()


async def test_a_body_of_two_lengths_is_refused(where: Site) -> None:
    client = await where.connect()
    await client.send(HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}")
    answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Content-Length and Transfer-Encoding" in answer
    client.close()
    await where.assert_unharmed()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHo",
        HEAD + b"Content-Length: 1000000\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea",
    ],
    ids=["nothing", "headers", "body", "chunks", "the second request"],
)
async def test_row_17_slowloris(sent: bytes, pass_time: Passing, where: Site) -> None:
    client = await where.connect()
    await client.send(sent)
    await where.received(len(sent))
    for count in range(1, 8 if sent else 0):
        await pass_time(1.0)
        await client.send(b"a")
        await where.received(len(sent) + count)
    await pass_time(protocol.RECEIVE_SECONDS)
    answer = await client.rest()
    assert b"200 OK" in answer or b" 408 " in answer or not answer
    assert_no_secret(answer.decode())
    client.close()
    await until(lambda: not where.connections)
    await where.assert_unharmed()


async def test_row_17_a_body_in_chunks_of_one_byte_leaves_the_loop_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with site() as where:
        turns = LoopTurns()
        parsed = turns.counted(BoundedConnection.next_event)
        monkeypatch.setattr(BoundedConnection, "next_event", parsed)
        body = json.dumps({"prompt": "a", "max_tokens": 3, "user": "x" * 2000}).encode()
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        client = await where.connect()
        await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert (await client.answer()).startswith(b"HTTP/1.1 200 ")
        done = turns.stop()
        assert done.total() > len(body)
        assert max(done.values()) < 100
        client.close()
        await where.assert_unharmed()


async def test_row_17_is_told_in_the_shape_of_the_api(
    pass_time: Passing,
    where: Site,
) -> None:
    client = await where.connect()
    head = HEAD.replace(b"/v1/completions", b"/v1/messages")
    request = head + b"Content-Length: 1000\r\n\r\n{"
    await client.send(request)
    await where.received(len(request))
    await pass_time(protocol.RECEIVE_SECONDS)
    answer = await client.rest()
    client.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "error"


async def test_row_17_a_long_body_that_comes_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, pass_time: Passing
) -> None:
    monkeypatch.setattr(protocol, "RECEIVE_BYTES", 1)
    async with site() as where:
        client = await where.connect()
        body = json.dumps({"model": "echo", "prompt": "a", "max_tokens": 3}).encode()
        head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
        await client.send(head)
        for count, byte in enumerate(body):
            await where.received(len(head) + count)
            await pass_time(protocol.RECEIVE_SECONDS / 2)
            await client.send(bytes([byte]))
        assert (await client.answer()).startswith(b"HTTP/1.1 200 ")
        client.close()
        await where.assert_unharmed()


async def test_clients_of_a_server_that_was_stopped_itself_have_time(
    monkeypatch: pytest.MonkeyPatch,
    where: Site,
) -> None:
    """SIGSTOP, or a suspended machine: all timers are due at once, before clients go on."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    raw = json.dumps({"model": "echo", "prompt": "a", "max_tokens": 3}).encode()
    client = await where.connect()
    await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(raw))
    await until(lambda: [each for each in where.connections if each._exchange is not None])
    monkeypatch.setattr(loop, "time", lambda: clock() + 3600.0)
    await asyncio.sleep(0.05)
    await client.send(raw)
    assert (await client.answer()).startswith(b"HTTP/1.1 200 ")
    client.close()
    await until(lambda: not where.connections)
    await where.assert_unharmed()


async def test_row_17_an_answer_may_take_its_time(
    pass_time: Passing,
) -> None:
    async with site(seconds=0.03) as where, httpx.AsyncClient(timeout=PATIENCE) as client:
        body = {"model": "echo", "prompt": "a", "max_tokens": 20}
        url = f"http://127.0.0.1:{where.port}/v1/completions"
        answer = asyncio.create_task(client.post(url, json=body))
        await until(lambda: where.app.engine.num_unfinished > 0)
        await pass_time(2 * protocol.RECEIVE_SECONDS)
        assert (await answer).status_code == 200


async def test_row_18_idle_connections() -> None:
    async with site(max_connections=50) as where:
        idle = [await where.connect() for _ in range(500)]
        await until(lambda: len(where.connections) <= 50)
        await where.assert_unharmed()
        assert len(where.connections) <= 50
        for client in idle:
            client.close()


async def test_row_18_a_connection_in_use_is_not_given_away() -> None:
    async with site(seconds=0.01, max_connections=1) as where:
        client = await where.connect()
        body = {"model": "echo", "prompt": "{", "ignore_eos": True, "stream": True}
        raw = json.dumps(body | {"max_tokens": 200}).encode()
        await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        await client.answer()
        refused = await where.connect()
        assert (await refused.rest()).startswith(b"HTTP/1.1 503 ")
        refused.close()
        assert (await client.reader.readline()).strip()
        client.close()
        await until(lambda: not where.connections)
        await where.assert_unharmed()


async def test_idle_connections_are_closed_after_those_of_proxies_and_not_with_a_request(
    pass_time: Passing,
    where: Site,
) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    client = await where.connect()
    await client.send(request)
    await client.answer()
    await pass_time(61.0)
    await asyncio.sleep(0.05)
    (connection,) = where.connections
    client.writer.get_extra_info("socket")._sock.send(request)  # the loop has not seen it
    connection._close_idle()
    assert (await client.answer()).startswith(b"HTTP/1.1 200 ")
    await until(lambda: connection.asks_nothing)
    await pass_time(protocol.KEEP_ALIVE_SECONDS)
    assert await client.rest() == b""
    client.close()
    await until(lambda: not where.connections)
    await where.assert_unharmed()


SPELLINGS = [
    "/v1/models", "//v1/models", "/v1//models", "/v1/%6dodels", "/%76%31/models", "/v1/models/",
    "/health/../v1/models", "/health%2f..%2fv1/models", "/HEALTH", "/metrics", "/ready",
    "/v1/models?/health", "/v1/models#/health", "/explain", "/reset_prefix_cache", "/.health", "*",
    "http://x/v1/models", "http://x//v1/models", "http://health/v1/models", "/dashboard/stream",
]  # fmt: skip


async def keyless(where: Site) -> set[str]:
    """The paths, of all that are routed, that answer somebody without a key."""
    found = set[str]()
    for route in where.app.app.routes:
        assert isinstance(route, Route)
        path = re.sub(r"{\w+(:path)?}", "x", route.path)
        for method in route.methods or ():
            answer = await where.app.http.request(method, path)
            if answer.status_code != 401:
                found.add(path)
    return found


async def test_row_19_every_spelling_of_a_path_needs_the_key() -> None:
    async with site(api_keys=["secret"]) as where:
        for path in SPELLINGS:
            client = await where.connect()
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            await client.send(head.encode())
            assert (await client.rest()).startswith(b"HTTP/1.1 401 "), path
            client.close()
        assert await keyless(where) == {"/health", "/", "/dashboard/assets/x"}
        for key in ("secret", "Bearer secre", "Bearer secretsecret", "Bearer", "Basic secret"):
            assert (await where.get("/v1/models", authorization=key)).status_code == 401
        assert (await where.get("/v1/models", authorization="Bearer secret")).status_code == 200
        assert (await where.get("/health")).status_code == 200
        where.app.http.headers["authorization"] = "Bearer secret"
        await where.assert_unharmed()


async def test_row_32_a_client_that_stops_reading_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.2)
    async with site() as where:
        client = await where.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = {"model": "echo", "prompt": ["a"] * 100, "n": 20, "max_tokens": 25, "logprobs": 20}
        raw = json.dumps({**body, "stream": True}).encode()
        await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        await until(lambda: where.app.engine.num_unfinished > 0)
        await until(lambda: not where.connections)
        await until(lambda: where.app.engine.num_unfinished == 0)
        await where.assert_unharmed()
        client.close()


def head_of(size: int) -> bytes:
    """A request of so many bytes, all of them its head."""
    begin, end = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ", b"\r\n\r\n"
    return begin + b"a" * (size - len(begin) - len(end)) + end


async def sent(where: Site, *parts: bytes) -> bytes:
    """The answer to a client that reads only once it has sent everything, as most do."""
    client = await where.connect()
    for part in parts:
        client.writer.write(part)  # raises if the server resets the connection
        await client.writer.drain()
        await asyncio.sleep(0)
    answer = await asyncio.wait_for(client.reader.read(), PATIENCE)
    client.close()
    return answer


SIZES = [MAX_HEADER_BYTES + 5, 70_000, 200_000, 2**20, 2**24]


@pytest.mark.parametrize("size", SIZES)
async def test_row_14_a_head_that_is_too_long_is_always_answered(size: int, where: Site) -> None:
    for parts in ([head_of(size)], [head_of(size)[:-4]], [head_of(size)[:-4], b"\r\n\r\n"]):
        head, _, body = (await sent(where, *parts)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 ")
        assert str(MAX_HEADER_BYTES) in json.loads(body)["error"]["message"]
    await until(lambda: not where.connections)
    await where.assert_unharmed()


@pytest.mark.parametrize("step", [1000, 4096, 40_000, MAX_HEADER_BYTES - 1, MAX_HEADER_BYTES])
async def test_row_14_heads_are_bounded_however_they_are_cut(step: int, where: Site) -> None:
    for size, status in ((MAX_HEADER_BYTES, 200), (MAX_HEADER_BYTES + 1, 431), (70_000, 431)):
        whole = head_of(size)
        parts = [whole[at : at + step] for at in range(0, size, step)]
        assert (await sent(where, *parts)).startswith(b"HTTP/1.1 %d " % status)
    first = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    assert (await sent(where, first + head_of(MAX_HEADER_BYTES))).count(b"HTTP/1.1 200 ") == 2
    assert b"HTTP/1.1 431 " in await sent(where, first + head_of(MAX_HEADER_BYTES + 1))


async def test_row_14_what_follows_a_refused_head_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "LINGER_BYTES", 2**20)
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.2)
    async with site() as where:
        endless, silent = await where.connect(), await where.connect()
        await endless.send(head_of(70_000) + b"a" * 2**23)
        await silent.send(head_of(70_000))
        await until(lambda: not where.connections)
        endless.close()
        silent.close()
        await where.assert_unharmed()


async def test_row_14_a_body_that_is_refused_is_answered() -> None:
    async with site(max_body_bytes=1000) as where:
        for kind, status in ((b"text/plain", 415), (b"application/json", 413)):
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\n" % kind
            length = b"Content-Length: %d\r\n\r\n" % 2**23
            assert (await sent(where, head + length, b"a" * 2**23)).startswith(
                b"HTTP/1.1 %d " % status
            )
        await where.assert_unharmed()
