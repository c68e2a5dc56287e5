"""A bounded queue: 429 beyond it, nothing that was accepted is lost; many arrivals at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from quire.core.sampling_params import RequestOutputKind, SamplingParams
from tests.unit.frontend.test_core_client import until
from tests.unit.server.fake_engine import Running, running

SEATS = 16
"""Of the fake engine's batch."""


async def test_beyond_the_queue_is_429(caplog: pytest.LogCaptureFixture) -> None:
    async with running(seconds=0.01, max_queued_requests=4) as app:
        await app.complete()
        answers = await asyncio.gather(*(app.complete(max_tokens=20) for _ in range(SEATS + 9)))
        accepted = [a for a in answers if a.status_code == 200]
        refused = [a for a in answers if a.status_code == 429]
        assert (len(accepted), len(refused)) == (SEATS + 4, 5)
        for answer in accepted:
            assert answer.json()["usage"]["completion_tokens"] == 20
        for answer in refused:
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert "the queue holds 4" in error["message"]
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert app.engine.stats.rejected == 5
        assert "quire:requests_rejected_total" in (await app.http.get("/metrics")).text
        assert (await app.complete()).status_code == 200


async def test_a_client_that_fills_the_queue_keeps_no_other_out() -> None:
    async with running(seconds=0.01, max_queued_requests=8) as app:
        # One request may bring more than the queue holds.
        flood = asyncio.create_task(app.complete(prompt=["a"] * 64, max_tokens=20))
        await until(lambda: app.engine.num_queued == 64 - SEATS)
        assert (await app.complete()).status_code == 429
        second = httpx.ASGITransport(app.app, client=("10.0.0.2", 1))
        async with httpx.AsyncClient(transport=second, base_url="http://test") as http:
            body = {"model": "echo", "prompt": "a", "max_tokens": 20, "temperature": 0}
            sent = [http.post("/v1/completions", json=body) for _ in range(6)]
            answers = await asyncio.gather(*sent)
        assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2  # half of 8
        assert not flood.done(), "the second client waited for the first"
        assert (await flood).status_code == 200


async def test_a_client_with_all_seats_keeps_no_other_waiting() -> None:
    async with running(seconds=0.02) as app:
        body = {"max_tokens": 22, "ignore_eos": True}  # three of 64 blocks each
        alone = (await app.complete(**body)).json()["choices"][0]["text"]
        flood = [asyncio.create_task(app.complete(**body)) for _ in range(2 * SEATS)]
        begun = app.engine.stats.generation_tokens + SEATS
        await until(lambda: app.engine.stats.generation_tokens >= begun)
        second = httpx.ASGITransport(app.app, client=("10.0.0.2", 1))
        async with httpx.AsyncClient(transport=second, base_url="http://test") as http:
            wanted = {"model": "echo", "prompt": "a", "max_tokens": 3, "temperature": 0}
            answer = await http.post("/v1/completions", json=wanted)
        assert answer.json()["choices"][0]["text"] == "bcd"
        assert not any(task.done() for task in flood)
        texts = {(await task).json()["choices"][0]["text"] for task in flood}
        assert texts == {alone}


async def test_clients_are_counted_until_their_sequences_end() -> None:
    async with running(seconds=0.01) as app:
        left = asyncio.create_task(app.complete(n=3, max_tokens=20))
        await until(lambda: app.engine.by_client().total() == 3)
        ended = await app.complete(max_tokens=2)
        assert ended.status_code == 200
        assert [*app.engine.by_client().values()] == [3]
        left.cancel()
        await until(lambda: not app.engine.num_unfinished)
        assert app.engine._output.by_client == {}  # no client that has left is remembered


@pytest.mark.parametrize("stream", [False, True])
async def test_every_way_in_is_bounded(stream: bool) -> None:
    async with running(seconds=0.01, max_queued_requests=0) as app:
        under_way = [asyncio.create_task(app.complete(max_tokens=50)) for _ in range(SEATS)]
        await until(lambda: app.engine.num_unfinished == SEATS)
        assert (await app.complete(stream=stream)).status_code == 429
        assert (await app.chat(stream=stream)).status_code == 429
        for task in under_way:
            assert (await task).status_code == 200


async def test_one_request_may_bring_more_than_the_queue_holds() -> None:
    async with running(max_queued_requests=1) as app:
        response = await app.complete(prompt=["a"] * 40)
        assert [c["text"] for c in response.json()["choices"]] == ["bcd"] * 40


async def test_the_engine_itself_is_not_bounded() -> None:
    async with running(max_queued_requests=0) as app:
        answers = await asyncio.gather(*(_generate(app) for _ in range(100)))
        assert set(answers) == {"bcd"}


async def _generate(app: Running, text: str = "a") -> str:
    params = SamplingParams(max_tokens=3, temperature=0.0)
    return [o async for o in app.engine.generate(text, params)][-1].outputs[0].text


async def test_the_first_token_is_out_before_a_tenth_is_tokenized(
    monkeypatch: pytest.MonkeyPatch,
    app: Running,
) -> None:
    tokenized: list[str] = []
    at_first_token: list[int] = []
    encode = app.engine.tokenizer.encode

    def counted(text: str, add_special_tokens: bool = True) -> list[int]:
        tokenized.append(text)
        return encode(text, add_special_tokens)

    async def first_token() -> None:
        params = SamplingParams(max_tokens=2, output_kind=RequestOutputKind.DELTA)
        await anext(app.engine.generate("a", params))
        at_first_token.append(len(tokenized))

    monkeypatch.setattr(app.engine.tokenizer, "encode", counted)
    await asyncio.gather(*(first_token() for _ in range(256)))
    assert len(tokenized) == 256
    assert at_first_token[0] < 0.1 * 256


async def test_reset_prefix_cache(app: Running) -> None:
    prompt = "abcdefghijklmnopqrstuvw" * 3

    async def cached() -> int:
        return cached_tokens(await app.complete(prompt=prompt))

    assert await cached() == 0
    assert await cached() > 0
    assert (await app.http.post("/reset_prefix_cache")).status_code == 200
    assert await cached() == 0
    assert (await app.http.get("/reset_prefix_cache")).status_code == 405


def cached_tokens(response: httpx.Response) -> int:
    details: dict[str, Any] = response.json()["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"])
