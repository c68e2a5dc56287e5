"""A request's timeline can be asked for, while it runs and afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.server.fake_engine import Running, running


async def timeline(app: Running, name: str) -> dict[str, Any]:
    response = await app.http.get(f"/dashboard/requests/{name}")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


async def test_by_every_name_that_a_client_knows(app: Running) -> None:
    answer = await app.http.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
        headers={"x-request-id": "my-request.1"},
    )
    body = answer.json()
    by_response = await timeline(app, body["id"])
    by_header = await timeline(app, answer.headers["x-request-id"])
    by_lane = await timeline(app, by_response["id"])
    assert by_response == by_header == by_lane
    assert by_lane["state"] == "finished"
    assert by_lane["finish_reason"] == "length"
    assert by_lane["prompt_tokens"] == body["usage"]["prompt_tokens"]
    assert by_lane["output_tokens"] == 3
    assert [span[0] for span in by_lane["spans"]] == ["queue", "prefill", "decode"]
    assert by_lane["events"][0]["kind"] == "arrived"
    assert by_lane["metrics"]["e2e"] >= by_lane["metrics"]["ttft"] > 0.0


async def test_the_cache_hit_is_told(app: Running) -> None:
    await app.complete(prompt="abcdefgh" * 3)
    body = (await app.complete(prompt="abcdefgh" * 3)).json()
    found = await timeline(app, body["id"])
    assert found["cached_tokens"] == body["usage"]["prompt_tokens_details"]["cached_tokens"] == 16


@pytest.mark.parametrize(("cache_prompt", "cached"), [(None, 16), (True, 16), (False, 0)])
async def test_a_prompt_is_computed_whole_on_request(
    cache_prompt: bool | None, cached: int, app: Running
) -> None:
    texts = []
    for given in (None, cache_prompt, None):
        body = (await app.complete(prompt="abcdefgh" * 3, cache_prompt=given)).json()
        texts.append((body["choices"][0]["text"], body["usage"]["prompt_tokens_details"]))
    assert [text for text, _ in texts] == ["ijk"] * 3
    assert [details["cached_tokens"] for _, details in texts] == [0, cached, 16]


async def test_all_sequences_of_a_response_are_named(app: Running) -> None:
    body = (await app.complete(prompt=["a", "b"], n=2)).json()
    found = await timeline(app, body["id"])
    assert len(found["related"]) == 4
    for name in found["related"]:
        assert (await timeline(app, name))["related"] == found["related"]


async def test_unknown() -> None:
    async with running(api_keys=["secret"]) as app:
        assert (await app.http.get("/dashboard/requests/x")).status_code == 401
        headers = {"authorization": "Bearer secret"}
        response = await app.http.get("/dashboard/requests/x", headers=headers)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "request_not_found"


async def test_every_token_has_its_interval(app: Running) -> None:
    """Of many at once, with preemptions: 16 seats, and blocks for five of these."""
    prompts = [chr(97 + i) * 40 for i in range(20)]
    await asyncio.gather(*(app.complete(prompt=p, max_tokens=60, ignore_eos=True) for p in prompts))
    lanes = [t.lane() for t in app.engine.timelines.recent(0.0, 99)]
    scheduler = app.engine.stats.scheduler
    assert scheduler.num_preemptions > 0
    assert len(lanes) == 20
    kinds = [span[0] for lane in lanes for span in lane.spans]
    assert kinds.count("preempted") == scheduler.num_preemptions
    for lane in lanes:
        assert lane.spans[0][:2] == ("queue", lane.arrival)
        assert sum(s[3] for s in lane.spans if s[0] == "decode") == lane.output_tokens == 60
        first_chunks = lane.prompt_tokens - lane.cached_tokens
        assert sum(s[3] for s in lane.spans if s[0] == "prefill") >= first_chunks
        ends = [end for _, _, end, _ in lane.spans]
        assert None not in ends
        for (_, _, end, _), (_, start, _, _) in zip(lane.spans, lane.spans[1:], strict=False):
            assert start >= end


async def test_a_client_s_trace_headers_reach_the_engine(
    monkeypatch: pytest.MonkeyPatch, app: Running
) -> None:
    submit, seen = app.engine.submit, []

    async def watched(*args: Any, **kwargs: Any) -> None:
        seen.append(args[-1].trace_headers)
        await submit(*args, **kwargs)

    monkeypatch.setattr(app.engine, "submit", watched)
    app.http.headers.update({"traceparent": "00-1-2-01", "tracestate": "a=b", "baggage": "c"})
    await app.complete()
    await app.chat()
    del app.http.headers["traceparent"]
    await app.chat()
    assert seen == [{"traceparent": "00-1-2-01", "tracestate": "a=b"}] * 2 + [None]
