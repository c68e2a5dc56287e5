"""Row 33: four times as many requests as there is room for; row 43: those that do not end."""

from __future__ import annotations

import asyncio
import json

from tests.unit.server.fake_engine import running

ROOM = 16 + 8
"""Seats of the echo engine, and places in the queue."""


async def test_row_33_overload_is_refused_and_the_rest_is_served() -> None:
    async with running(seconds=0.001, max_queued_requests=8) as app:
        for _ in range(3):
            answers = await asyncio.gather(
                *(app.complete(prompt="a", max_tokens=20) for _ in range(4 * ROOM))
            )
            served = [a for a in answers if a.status_code == 200]
            refused = [a for a in answers if a.status_code == 429]
            assert len(served) + len(refused) == 4 * ROOM
            assert len(served) >= ROOM
            assert len(refused) >= ROOM
            for answer in served:
                assert answer.json()["choices"][0]["text"] == "bcdefghijklmnopqrstu"
            for answer in refused:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                assert answer.json()["error"]["type"] == "rate_limit_error"
        assert app.engine.num_unfinished == 0
        assert app.core.scheduler.kv.pool.num_used == 0
        app.core.scheduler.check_integrity()
        assert (await app.complete()).json()["choices"][0]["text"] == "bcd"


async def test_row_43_who_does_not_end_in_time_gets_an_error() -> None:
    async with running(seconds=0.01) as app:
        fields = {"prompt": "{", "ignore_eos": True, "stream": True, "max_tokens": 200}
        stream = asyncio.create_task(app.complete(**fields))
        whole = asyncio.create_task(app.complete(**{**fields, "stream": False}))
        while app.engine.stats.generation_tokens < 10:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        drain = asyncio.create_task(app.engine.drain(0.05))
        await asyncio.sleep(0)
        assert (await app.http.get("/ready")).status_code == 503
        assert (await app.http.get("/health")).status_code == 200
        assert (await app.complete()).json()["error"]["code"] == "shutting_down"
        await drain
        events = (await stream).text.split("\n\n")
        assert json.loads(events[-3].removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert (await whole).status_code == 503
        assert app.engine.num_unfinished == 0
