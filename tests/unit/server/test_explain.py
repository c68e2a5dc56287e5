"""`GET /explain`: a server that is watched, and says what it lost its time to."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import Any

import msgspec
import pytest

from quire.core.op_profile import OpProfile, OpTime
from quire.explain import probe
from quire.explain.analyse import explain
from quire.explain.evidence import Evidence
from quire.explain.report import Report
from quire.server.monitoring import watch
from quire.server.monitoring.watch import report_on
from quire.system.stacks import Place, Stacks
from tests.unit.explain.made_faults import FAULTS
from tests.unit.server.fake_engine import Running, running


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else runs on the machine is not what these tests are about."""
    monkeypatch.setattr(probe, "read_host", lambda: None)


async def explained(app: Running, **query: Any) -> Report:
    response = await app.http.get("/explain", params={"window": 0.3, **query})
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=Report)


async def test_an_idle_server_is_idle(app: Running) -> None:
    report = await explained(app)
    assert report.rates["running"] == report.rates["output_tok_s"] == 0
    assert max(report.split, key=report.split.__getitem__) == "idle"
    assert report.window_s >= 0.3
    assert report.notes


async def test_a_server_under_load() -> None:
    async with running(seconds=0.02) as app:

        async def complete() -> None:
            while True:  # however long the window is
                await app.complete(max_tokens=250, ignore_eos=True)

        requests = [asyncio.create_task(complete()) for _ in range(3)]
        while app.engine.stats.generation_tokens < 6:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)
        report = await explained(app)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        assert report.rates["running"] > 0
        assert report.rates["output_tok_s"] > 0


async def test_the_operations_are_profiled_meanwhile(
    monkeypatch: pytest.MonkeyPatch, app: Running
) -> None:
    op = OpTime("linear", "layers.0.mlp.up", 1, 0.1, 10**9, 10**9, "x", "float32", 1)
    profile = OpProfile(1, 0.2, 0.15, 1, 1, 1, [op])
    call = app.core.call

    def answer(method: str, args: list[Any]) -> Any:
        if not method.endswith(("op_profile", "op_profile_steps")):
            return call(method, args)
        return {
            "stop_op_profile": msgspec.to_builtins(profile),
            "op_profile_steps": (1, False),
        }.get(method)

    monkeypatch.setattr(app.core, "call", answer)
    report = await explained(app)
    assert [line.module for line in report.ops] == ["mlp.up"]


async def test_the_stacks_of_all_processes_are_in_the_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place("MainThread", "/x/sitecustomize.py:7 slow", True, 0.2, 0.2)
    async with running() as app:
        call = app.core.call

        def answer(method: str, args: list[Any]) -> Any:
            if not method.endswith("_stacks"):
                return call(method, args)
            return msgspec.to_builtins([Stacks(99, 0.3, [place])] * (method == "stop_stacks"))

        monkeypatch.setattr(app.core, "call", answer)
        response = await app.http.get("/explain", params={"window": 0.3, "evidence": "true"})
    own, core = msgspec.json.decode(response.content, type=Evidence).stacks
    assert own.pid == os.getpid()
    assert own.seconds >= 0.3
    assert core.places == [place]


async def test_files_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk delays the report, and no stream."""
    threads: list[threading.Thread] = []

    def collect(*seen: Any, **named: Any) -> Evidence:
        threads.append(threading.current_thread())
        return whole(*seen, **named)

    whole = watch.collect
    monkeypatch.setattr(watch, "collect", collect)
    async with running() as app:
        await explained(app, window=0.1)
    assert threads
    assert threading.current_thread() not in threads


async def test_someone_elses_profile_is_left_alone() -> None:
    async with running() as app, app.engine.profiling._ops:
        report = await explained(app)
        assert report.ops == []


async def test_the_evidence_comes_in_place_of_the_report_if_asked_for(app: Running) -> None:
    response = await app.http.get("/explain", params={"window": 0.1, "evidence": "true"})
    evidence = msgspec.json.decode(response.content, type=Evidence)
    assert evidence.window.seconds >= 0.1
    assert evidence.config.prefix_caching_hash_seed == 0


@pytest.mark.parametrize("window", ["0", "61", "nan", "soon", "-1"])
async def test_a_bad_window_is_refused(window: str, app: Running) -> None:
    response = await app.http.get("/explain", params={"window": window})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "window"
    assert window in error["message"]


async def test_two_at_once_take_turns(app: Running) -> None:
    first, second = await asyncio.gather(explained(app), explained(app))
    assert first.window_s > 0
    assert second.window_s > 0


async def test_a_key_is_needed_where_one_is_set() -> None:
    async with running(api_keys=["secret"]) as app:
        assert (await app.http.get("/explain")).status_code == 401


async def test_metrics_count_repeats_and_slow_clients(app: Running) -> None:
    for _ in range(2):
        response = await app.complete(prompt=list(range(1, 20)) * 8)
        assert response.status_code == 200, response.text
    text = (await app.http.get("/metrics")).text
    assert 'quire:repeated_prompt_tokens_total{engine="0",model_name="echo"} 128.0' in text
    assert "quire:slow_client_outputs_total" in text


async def test_refused_requests_are_counted_by_their_error(app: Running) -> None:
    for fields in ({"prompt": [5] * 100_000}, {"temperature": -1}):
        assert (await app.complete(**fields)).status_code == 400
    await app.http.get("/nowhere")
    refused = app.engine.stats.refused
    assert refused == {"context_length_exceeded": 1, "invalid_request": 1}


async def test_a_server_that_cannot_start_the_simulation_reports_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)
    evidence, _ = FAULTS["queueing"]
    assert await report_on(evidence) == explain(evidence)
