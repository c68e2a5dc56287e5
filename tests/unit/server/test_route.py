"""`quire route` in front of two echo servers, all in this event loop."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from quire.core.errors import ConfigError
from quire.server.http.protocol import Site
from quire.server.http.server import HttpServer
from quire.server.route import upstream
from quire.server.route.proxy import Router, _Passed, create_router_app
from quire.server.route.record import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_ITEMS,
    MAX_READ,
    SentPrompts,
    prompt_of,
)
from quire.server.route.upstream import Upstream
from tests.unit.frontend.test_core_client import until
from tests.unit.server.fake_engine import MODEL, Running, running

PATIENCE = 120.0
BODY: dict[str, Any] = {"model": MODEL, "prompt": "a", "max_tokens": 3, "temperature": 0}


@dataclass
class Listening:
    """An application on a free port."""

    url: str
    server: HttpServer
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.server.stop()
        await self.task


async def listen(app: ASGIApp, port: int = 0) -> Listening:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.listen()
    server = HttpServer(Site(app))
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    return Listening(url, server, asyncio.create_task(server.serve(bound)))


@dataclass
class Routed:
    """Two servers, the router, and a client of that."""

    engines: list[Running]
    servers: list[Listening]
    router: Router
    http: httpx.AsyncClient

    @property
    def tokens(self) -> list[int]:
        return [each.engine.stats.generation_tokens for each in self.engines]


@asynccontextmanager
async def fronted(*apps: ASGIApp) -> AsyncIterator[tuple[Router, httpx.AsyncClient, list[Any]]]:
    """A router in front of applications, its client, and where the applications listen."""
    servers = [await listen(each) for each in apps]
    router = Router([Upstream(each.url) for each in servers], 2**20)
    async with router.lifespan():
        front = await listen(create_router_app(router))
        async with httpx.AsyncClient(base_url=front.url, timeout=PATIENCE) as http:
            yield router, http, servers
        for each in (front, *servers):
            await each.stop()


@asynccontextmanager
async def routed(seconds: float = 0.0, **options: Any) -> AsyncIterator[Routed]:
    async with (
        running(seconds, **options) as one,
        running(seconds, **options) as other,
        fronted(one.app, other.app) as (router, http, servers),
    ):
        yield Routed([one, other], servers, router, http)


async def answer_health(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def complete(routed: Routed, **fields: Any) -> httpx.Response:
    return await routed.http.post("/v1/completions", json={**BODY, **fields})


async def test_requests_are_shared_and_follow_their_prefix() -> None:
    async with routed(0.01) as there:
        answers = await asyncio.gather(*(complete(there) for _ in range(4)))
        assert [a.json()["choices"][0]["text"] for a in answers] == ["bcd"] * 4
        assert there.tokens == [6, 6]
        assert all("x-request-id" in a.headers for a in answers)
        prompt = "p" * 100
        fields = {"prompt": prompt, "logit_bias": {}, "cache_salt": "s" * CHUNK_BYTES}
        first = sum(there.tokens)
        before = there.tokens
        for _ in range(3):
            await complete(there, **fields)
        used = [now - then for now, then in zip(there.tokens, before, strict=True)]
        assert sorted(used) == [0, sum(there.tokens) - first]


async def test_streams_are_not_buffered_and_end_with_their_client() -> None:
    async with routed(0.02) as there:
        body = {**BODY, "stream": True, "max_tokens": 100, "ignore_eos": True}
        async with there.http.stream("POST", "/v1/completions", json=body) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            await anext(stream.aiter_lines())
            assert sum(there.tokens) < 50
        await until(lambda: not any(each.engine.num_unfinished for each in there.engines))
        assert sum(there.tokens) < 100


async def test_keys_errors_and_other_paths_pass_through() -> None:
    async with routed(api_keys=("secret",)) as there:
        assert (await complete(there)).status_code == 401
        there.http.headers["authorization"] = "Bearer secret"
        assert (await complete(there)).status_code == 200
        wrong = await complete(there, temperature=-1)
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "temperature"
        models = await there.http.get("/v1/models?x=1")
        assert models.json()["data"][0]["id"] == MODEL
        large = await there.http.post("/v1/completions", content=b" " * (2**20 + 1))
        assert large.status_code == 413
        text = (await there.http.get("/metrics")).text
        assert f'quire:route_healthy{{replica="{there.servers[0].url}"}} 1.0' in text
        assert there.router.retries == 0


async def test_a_stored_response_is_where_it_was_made() -> None:
    async with routed() as there:
        for _ in range(4):
            made = await there.http.post("/v1/responses", json={"model": MODEL, "input": "a"})
            name = made.json()["id"]
            assert (await there.http.get(f"/v1/responses/{name}")).json()["id"] == name
            more = {"model": MODEL, "input": "b", "previous_response_id": name}
            assert (await there.http.post("/v1/responses", json=more)).status_code == 200


async def test_requests_leave_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "HEALTH_SECONDS", 0.05)
    async with routed() as there:
        for _ in range(2):
            await complete(there)
        await there.servers[0].stop()
        for _ in range(4):
            assert (await complete(there)).status_code == 200
        await until(lambda: not there.router.upstreams[0].is_healthy)
        await there.servers[1].stop()
        await until(lambda: not there.router.healthy)
        none = await complete(there)
        assert (none.status_code, none.headers["retry-after"]) == (503, "2")
        assert (await there.http.get("/health")).status_code == 503
        port = int(there.servers[1].url.rpartition(":")[2])
        there.servers[1] = await listen(there.engines[1].app, port)
        await until(lambda: there.router.healthy == 0b10)
        assert (await complete(there)).status_code == 200


@pytest.fixture
def checked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that hangs ends soon, and none begins by itself: a slow machine misses none."""
    monkeypatch.setattr(upstream, "HEALTH_SECONDS", 3600.0)
    monkeypatch.setattr(upstream, "CHECK_SECONDS", 0.05)


@pytest.mark.usefixtures("checked_by_hand")
async def test_requests_leave_a_server_that_is_stuck() -> None:
    """It holds its connections open, and answers nothing any more."""
    asked = 0

    async def hangs(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += scope["path"] != "/health"
        while (await receive())["type"] != "http.disconnect":
            pass

    async with running() as engine, fronted(hangs, engine.app) as (router, http, _):
        stuck, well = router.upstreams
        stuck.is_healthy = well.is_healthy = True
        stuck.heard()
        answer = asyncio.create_task(http.post("/v1/completions", json=BODY))
        await until(lambda: asked == 1)
        for _ in range(upstream.SILENT_CHECKS):
            assert not answer.done()
            await stuck.check()
        assert (await answer).json()["choices"][0]["text"] == "bcd"
        assert (asked, router.retries, router.healthy) == (1, 1, 0b10)


@pytest.mark.usefixtures("checked_by_hand")
async def test_a_server_that_streams_is_not_stuck() -> None:
    """It has no time for health checks, but sends parts of an answer."""
    count, due = 2 * upstream.SILENT_CHECKS, asyncio.Queue[bytes]()

    async def starved(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while part := await due.get():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with fronted(starved) as (router, http, _):
        [checked] = router.upstreams
        checked.is_healthy = True
        answer = asyncio.create_task(http.post("/v1/completions", json=BODY))
        for _ in range(count):
            due.put_nowait(b"a")
            await until(lambda: checked._silent == 0)
            await checked.check()
        due.put_nowait(b"")
        assert (await answer).text == "a" * count


async def test_a_broken_answer_is_not_repeated() -> None:
    """A stream that has begun ends with an error; a request without output moves."""

    async def breaks(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            await answer_health(send)
            return
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        scope["extensions"]["quire.transport"].abort()

    async with fronted(breaks) as (_, http, _):
        answer = await http.post("/v1/completions", json=BODY)
    events = [line for line in answer.text.split("\n") if line]
    assert events[0] == "data: 1"
    assert "broke off" in json.loads(events[1].removeprefix("data: "))["error"]["message"]


async def test_a_request_that_servers_drop_makes_none_of_them_unhealthy() -> None:
    """Else one client could close the router for all."""

    async def drops(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/health":
            await answer_health(send)
            return
        scope["extensions"]["quire.transport"].abort()

    async with fronted(drops, drops) as (router, http, _):
        assert (await http.post("/v1/completions", json=BODY)).status_code == 503
        assert router.healthy == 0b11


async def test_responses_of_one_id_are_told_apart() -> None:
    async with routed() as there:
        body = {"model": MODEL, "input": "a"}
        asked = [
            there.http.post("/v1/responses", json=body, headers={"x-request-id": "same"})
            for _ in range(6)
        ]
        made = [answer.json()["id"] for answer in await asyncio.gather(*asked)]
        assert len({*made}) == 6
        for name in made:
            assert (await there.http.get(f"/v1/responses/{name}")).json()["id"] == name


async def test_what_a_client_left_before_its_body_has_ended() -> None:
    ended: list[int] = []

    async def parts() -> AsyncIterator[bytes]:
        yield b"never asked for"

    async def send(message: Any) -> None:
        raise OSError

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    answer = _Passed(parts(), 200, lambda: ended.append(1))
    with pytest.raises(ClientDisconnect):
        await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    assert ended == [1]


async def test_a_full_server_is_left() -> None:
    async with routed(0.05, max_queued_requests=0) as there:
        seats = there.engines[0].engine.max_num_seqs
        tasks = [asyncio.create_task(complete(there, max_tokens=4)) for _ in range(2 * seats)]
        answers = await asyncio.gather(*tasks)
        assert {answer.status_code for answer in answers} <= {200, 429}
        assert there.tokens[0] > 0
        assert there.tokens[1] > 0


def test_prompts_of_a_conversation_begin_alike() -> None:
    def chat(*texts: str) -> bytes:
        messages = [{"role": "user", "content": text} for text in texts]
        return json.dumps({"max_tokens": len(texts), "messages": messages}).encode()

    first, second = prompt_of(chat("x" * 600)), prompt_of(chat("x" * 600, "y", "z" * 600))
    assert len(first.hashes) == 2
    assert second.hashes[:2] == first.hashes
    assert second.num_tokens > first.num_tokens
    assert not set(prompt_of(chat("y" * 600)).hashes) & set(first.hashes)
    for body in (b"", b"[]", b"{", b"\xff", b'{"messages": 3}', b"[" * 100_000):
        assert prompt_of(body).num_tokens >= 1


def test_of_a_long_body_the_beginning_is_compared() -> None:
    bodies = [b'{"prompt": "' + b"p" * MAX_READ + end + b'"}' for end in (b"", b"q" * 4096)]
    short, long = map(prompt_of, bodies)
    assert short.hashes == long.hashes
    assert len(short.hashes) == MAX_READ // CHUNK_BYTES
    assert long.num_tokens - short.num_tokens == 4096 // 4
    tokens = [prompt_of(json.dumps({"prompt": [7] * n}).encode()) for n in (600, MAX_ITEMS + 1)]
    assert tokens[1].hashes[: len(tokens[0].hashes)] == tokens[0].hashes != []


def test_the_record_of_a_server_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.server.route.record.MAX_CHUNKS", 4)
    assert MAX_CHUNKS > 4
    sent = SentPrompts(2)
    for letter in "abc":
        prompt = prompt_of(json.dumps({"prompt": letter * 3 * CHUNK_BYTES}).encode())
        name = sent.begin(0, prompt)
        sent.answered(0, name, prompt)
        sent.ended(0, name, 2)
    known = sent._known[0]
    assert len(known) == 4
    assert [*known][-3:] == [*reversed(prompt.hashes)]
    assert sent._router._cache.num_held(0) == 4


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://", "http://a?b=1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="no http:// or https:// address"):
        Upstream(url)
