"""The dashboard's stream: one snapshot for all, none for nobody, and nobody is waited for."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message, Scope

from quire.core.config import ClusterConfig
from quire.core.messages import StageStats
from quire.kv.snapshot import kv_snapshot
from quire.kv.snapshot_types import KVSnapshot
from quire.metrics.stats import EngineStats
from quire.server.errors import ApiError
from quire.server.monitoring import feed as feed_module
from quire.server.monitoring import snapshot as snapshot_module
from quire.server.monitoring.feed import MAX_VIEWERS, Feed
from tests.unit.engine.fakes import engine_config
from tests.unit.server.fake_engine import Running, running
from tests.unit.server.test_metrics import samples


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "INTERVAL", 0.01)


class Dashboard:
    """A connection to the stream that reads only when it is told to."""

    def __init__(self, app: Running) -> None:
        self.status = 0
        self._app = app
        self._gone = asyncio.Event()
        self._messages: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        scope: Scope = {
            "type": "http",
            "method": "GET",
            "path": "/dashboard/stream",
            "query_string": b"",
            "headers": [],
        }
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        await self._app.app(scope, receive, self._messages.put)

    async def next(self) -> dict[str, Any] | None:
        """The next snapshot; None at the end."""
        message = await self._messages.get()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = await self._messages.get()
        if not message.get("more_body"):
            return None
        event, data, _, _ = message["body"].decode().split("\n")
        assert event == "event: snapshot"
        found: dict[str, Any] = json.loads(data.removeprefix("data: "))
        return found

    async def close(self) -> None:
        self._gone.set()
        await self._task


@asynccontextmanager
async def dashboard(app: Running) -> AsyncIterator[Dashboard]:
    viewer = Dashboard(app)
    try:
        yield viewer
    finally:
        await viewer.close()


async def newest(viewer: Dashboard) -> dict[str, Any]:
    """A snapshot that was made after this call."""
    for _ in range(3):  # one may lie in the connection, and one wait for it
        snapshot = await viewer.next()
    assert snapshot is not None
    return snapshot


async def test_an_engine_that_has_done_nothing_has_its_kv_cache() -> None:
    async with running() as app, dashboard(app) as viewer:
        snapshot = await viewer.next()
        metrics = await samples(app)
    num_blocks = app.core.config.num_blocks
    assert snapshot["stats"]["kv_blocks_total"] == num_blocks == metrics["quire:kv_blocks free"]
    assert metrics["vllm:kv_cache_usage_perc"] == 0


async def test_every_number_agrees_with_the_metrics() -> None:
    async with running() as app, dashboard(app) as viewer:
        await app.complete(prompt="abcdefgh" * 3, n=2)
        await app.complete(prompt="abcdefgh" * 3, max_tokens=9)
        snapshot = await newest(viewer)
        while snapshot["stats"]["num_running"]:  # the last step's numbers are on their way
            snapshot = await newest(viewer)
        metrics = await samples(app)
    stats = snapshot["stats"]
    for name, metric in {
        "num_running": "vllm:num_requests_running",
        "num_waiting": "vllm:num_requests_waiting",
        "prefix_cache_queries": "vllm:prefix_cache_queries_total",
        "prefix_cache_hits": "vllm:prefix_cache_hits_total",
        "num_preemptions": "vllm:num_preemptions_total",
        "prompt_tokens": "vllm:prompt_tokens_total",
        "generation_tokens": "vllm:generation_tokens_total",
        "rejected": "quire:requests_rejected_total",
        "num_steps": "vllm:iteration_tokens_total_count",
        "kv_blocks_used": "quire:kv_blocks used",
        "kv_blocks_cached": "quire:kv_blocks cached",
    }.items():
        assert stats[name] == metrics[metric], name
    total = sum(metrics[f"quire:kv_blocks {state}"] for state in ("used", "cached", "free"))
    assert stats["kv_blocks_total"] == total
    assert stats["kv_blocks_cached"] > 0
    for reason, count in stats["finished"].items():
        assert count == metrics[f"vllm:request_success_total {reason}"]
    for part, seconds in snapshot["seconds"].items():
        assert seconds <= metrics[f"quire:time_seconds_total {part}"]
    latency = snapshot["latency"]
    assert latency["ttft"]["count"] == metrics["vllm:time_to_first_token_seconds_count"] == 2
    assert latency["itl"]["count"] == metrics["vllm:inter_token_latency_seconds_count"]
    assert 0 < latency["e2e"]["p50"] <= latency["e2e"]["p99"]
    assert (snapshot["model"], snapshot["max_model_len"]) == ("echo", 256)


async def test_the_kv_cache_is_drawn_with_its_owners() -> None:
    async with running(seconds=0.001) as app, dashboard(app) as viewer:
        await app.complete(prompt="z" * 30, max_tokens=1)
        prompts = [chr(97 + i) * 20 for i in range(3)]
        tasks = [
            asyncio.create_task(app.complete(prompt=p, max_tokens=200, ignore_eos=True))
            for p in prompts
        ]
        snapshot = await newest(viewer)
        while len(snapshot["kv_map"]["owners"]) < 3:
            snapshot = await newest(viewer)
        for task in tasks:
            task.cancel()
    kv_map = snapshot["kv_map"]
    assert kv_map["num_blocks"] == sum(count for _, _, count in kv_map["runs"]) == 64
    assert set(kv_map["owners"]) <= {lane["id"] for lane in snapshot["lanes"]}
    owned = {owner for kind, owner, _ in kv_map["runs"] if kind == "owned"}
    assert owned == {0, 1, 2}
    assert {kind for kind, _, _ in kv_map["runs"]} >= {"owned", "cached", "free"}
    nodes = snapshot["prefix_tree"]["nodes"]
    assert [n["tokens"] for n in nodes] == [8 * n["blocks"] for n in nodes]
    assert {n["parent"] for n in nodes} == {None}
    assert [lane["state"] for lane in snapshot["lanes"]] == ["finished", *["running"] * 3]
    assert snapshot["devices"][0]["kind"] == "cpu"


async def test_a_core_that_is_busy_does_not_hold_up_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as app, dashboard(app) as viewer:
        before = await newest(viewer)
        monkeypatch.setattr(snapshot_module, "PATIENCE", 0.001)
        answer = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(app.engine, "call", lambda _: _wait(answer))
        late = [await newest(viewer) for _ in range(2)]
        assert late[1]["now"] > late[0]["now"]
        assert late[1]["kv_map"] == before["kv_map"]
        answer.set_result(kv_snapshot(app.core.scheduler.kv))
        await newest(viewer)


async def _wait(answer: asyncio.Future[KVSnapshot]) -> KVSnapshot:
    return await answer


async def test_who_does_not_read_holds_up_nobody() -> None:
    async with running() as app, dashboard(app) as slow, dashboard(app) as quick:
        first = await slow.next()
        times = [(await newest(quick))["now"] for _ in range(5)]
        late = [await slow.next() for _ in range(3)]
    assert times == sorted(set(times))
    assert first is not None
    assert late[2]["now"] >= times[-1]  # what came between was not kept


async def test_nobody_watches_and_nothing_is_made() -> None:
    made = 0

    async def make() -> bytes:
        nonlocal made
        made += 1
        return b"{}"

    feed = Feed(make)
    for _ in range(2):
        with feed.viewer():
            assert await anext(feed.snapshots()) == b"event: snapshot\ndata: {}\n\n"
        before = made
        await asyncio.sleep(0.05)
        assert made == before


async def test_viewers_are_limited(app: Running) -> None:
    feed: Feed = app.app.state.feed
    with ExitStack() as viewers:
        for _ in range(MAX_VIEWERS - 1):
            viewers.enter_context(feed.viewer())
        with feed.viewer():
            refused = await app.http.get("/dashboard/stream")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "too_many_viewers"
        assert (await app.http.head("/dashboard/stream")).status_code == 200


@pytest.mark.parametrize(
    "end", [lambda app: app.app.state.feed.close(), lambda app: app.core_client.die()]
)
async def test_it_ends_with_the_server_and_with_the_engine(end: Callable[[Running], None]) -> None:
    async with running() as app, dashboard(app) as viewer:
        assert await viewer.next() is not None
        end(app)
        for _ in range(4):
            if await viewer.next() is None:
                break
        else:
            pytest.fail("the stream did not end")
        assert (await app.http.get("/dashboard/stream")).status_code == 503


async def test_a_bug_ends_the_streams(caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> Awaitable[bytes]:
        raise ZeroDivisionError

    feed = Feed(failing)
    with feed.viewer():
        assert [event async for event in feed.snapshots()] == []
    assert "has failed" in caplog.text
    feed.close()
    with pytest.raises(ApiError, match="shutting down"):
        feed.check_room()


async def test_it_needs_the_key() -> None:
    async with running(api_keys=["secret"]) as app:
        assert (await app.http.get("/dashboard/stream")).status_code == 401


def test_stages_have_their_machines_and_layers() -> None:
    stats = EngineStats()
    config = dataclasses.replace(
        engine_config(), stage_layers=(3, 2, 4, 1), cluster=ClusterConfig(nnodes=2)
    )
    assert snapshot_module.stages(stats, config) == []
    stats.on_ready(9)
    assert stats.scheduler is not None
    stats.scheduler.stages = [StageStats(float(n), 0.5, 6, 7) for n in range(4)]
    found = snapshot_module.stages(stats, config)
    assert [(s.node, s.layers, s.busy) for s in found] == [
        (0, 3, 0.0), (0, 2, 1.0), (1, 4, 2.0), (1, 1, 3.0),
    ]  # fmt: skip
    assert (found[1].hop_seconds, found[1].hop_bytes, found[1].hops) == (0.5, 6, 7)
