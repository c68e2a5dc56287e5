"""Responses that are streamed in the background: whoever leaves may come back for the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.server.errors import ApiError
from quire.server.http import event_stream
from quire.server.responses.events import EventLog, _events
from tests.unit.server.fake_engine import Running, running
from tests.unit.server.openai.test_tools import CALL, saying
from tests.unit.server.responses.test_responses import (
    TOOL,
    ask,
    comparable,
    get,
    noting,
    post,
    read_event,
    stream,
)


async def again(app: Running, name: str, **query: Any) -> list[dict[str, Any]]:
    """A response's events, asked for once more."""
    response = await app.http.get(f"/v1/responses/{name}", params={"stream": "true", **query})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return list(map(read_event, response.text.strip().split("\n\n"))) if response.text else []


async def test_the_events_are_told_as_often_as_one_likes() -> None:
    async with saying("Let me see. " + CALL) as app:
        fields: dict[str, Any] = {"tools": [TOOL]}
        found = await stream(app, background=True, **fields)
        kinds = [event["type"] for event in found]
        assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
        assert [e["response"]["status"] for e in found[:3]] == ["queued", "queued", "in_progress"]
        assert kinds[-1] == "response.completed"
        last = found[-1]["response"]
        assert await get(app, last["id"]) == last
        assert await again(app, last["id"]) == found
        for number in (0, 5, len(found) - 1, len(found) + 7):
            assert await again(app, last["id"], starting_after=number) == found[number + 1 :]
        whole = await ask(app, **fields)
        assert comparable({**last, "background": False}) == comparable(whole)


async def test_a_reader_that_leaves_ends_nothing() -> None:
    async with running(seconds=0.001) as app:
        begun = asyncio.Event()
        app.core.executor.execute = noting(app.core.executor.execute, begun)  # type: ignore[method-assign]
        fields = {"background": True, "ignore_eos": True, "max_output_tokens": 100}
        reader = asyncio.create_task(post(app, stream=True, **fields))
        await begun.wait()
        [name] = app.app.state.responses._kept
        meanwhile = await get(app, name)
        assert meanwhile["status"] == "in_progress"
        assert 0 < len(meanwhile["output"][0]["content"][0]["text"]) < 100
        reader.cancel()
        found = await again(app, name, starting_after=3)
        assert found[0]["sequence_number"] == 4
        assert found[-1]["type"] == "response.incomplete"
        text = found[-1]["response"]["output"][0]["content"][0]["text"]
        assert text.startswith(meanwhile["output"][0]["content"][0]["text"])
        told = [e["delta"] for e in await again(app, name) if "output_text.delta" in e["type"]]
        assert "".join(told) == text


async def test_cancelling_and_failing_end_the_stream() -> None:
    async with running(seconds=0.001) as app:
        begun = asyncio.Event()
        app.core.executor.execute = noting(app.core.executor.execute, begun)  # type: ignore[method-assign]
        reader = asyncio.create_task(stream(app, background=True, ignore_eos=True))
        await begun.wait()
        [name] = app.app.state.responses._kept
        cancelled = await app.http.post(f"/v1/responses/{name}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        assert cancelled.json()["output"][0]["content"][0]["text"]
        assert (await reader)[-1]["type"] == "response.output_text.delta"
        assert app.engine.num_unfinished == 0

        begun = asyncio.Event()
        app.core.executor.execute = noting(app.core.executor.execute, begun)  # type: ignore[method-assign]
        reader = asyncio.create_task(stream(app, background=True, ignore_eos=True))
        await begun.wait()
        app.core_client.die()
        last = (await reader)[-1]
        assert last["type"] == "response.failed"
        assert (await get(app, last["response"]["id"]))["status"] == "failed"


async def test_what_is_wrong_is_told_at_once(app: Running) -> None:
    assert (await post(app, background=True, stream=True, input="x" * 300)).status_code == 400
    assert len(app.app.state.responses) == 0
    for fields in ({}, {"background": True}, {"stream": True}):
        response = await post(app, max_output_tokens=2, **fields)
        body = response.json() if "stream" not in fields else None
        name = body["id"] if body else next(reversed(app.app.state.responses._kept))
        response = await app.http.get(f"/v1/responses/{name}?stream=true")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "stream"
    await app.http.get(f"/v1/responses/{name}?stream=true&include=a")
    assert app.engine.stats.ignored_fields == {"/v1/responses/{id}": 1}
    for query in ("starting_after=3", "stream=maybe", "stream=true&starting_after=-1"):
        assert (await app.http.get(f"/v1/responses/{name}?{query}")).status_code == 400


async def test_the_first_events_are_forgotten() -> None:
    log = EventLog(max_bytes=10)
    log.add([b"aaaa", b"bbbb"])
    reader = _events(log, 0)
    assert await anext(reader) == b"aaaabbbb"
    log.add([b"cccc", b"dddd", b"eeee"], last=True)
    assert log.size <= 10
    with pytest.raises(ApiError, match="before number 3"):
        log.since(2)
    assert log.since(3) == b"ddddeeee"
    assert b"no longer stored" in await anext(reader)
    assert [part async for part in _events(log, 4)] == [b"eeee"]


async def test_a_log_that_has_nothing_to_tell_says_that_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_stream, "PING_SECONDS", 0.01)
    log = EventLog()
    told = _events(log, 0)
    assert await anext(told) == b": ping\n\n"
    log.add([b"x"], last=True)
    assert [each async for each in told] == [b"x"]
