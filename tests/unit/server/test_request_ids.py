"""Clients may repeat an X-Request-Id: every response has an id of its own all the same."""

from __future__ import annotations

import asyncio
import itertools
import re
from typing import Any

import httpx
import pytest

from quire.server.http.request_ids import RequestIds, choose_request_id, engine_request_id, names_of
from tests.unit.server.fake_engine import MODEL, Running, running

HEADERS = {"x-request-id": "same"}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 3, "n": 2},
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT,
    "/v1/responses": {"input": "a", "max_output_tokens": 3},
}


async def ask(app: Running, path: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "temperature": 0, **BODIES[path], **fields}
    response = await app.http.post(path, json=body, headers=HEADERS)
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"] == "same"
    return response


@pytest.mark.parametrize("path", BODIES)
async def test_responses_to_one_request_id_have_ids_of_their_own(path: str) -> None:
    async with running(seconds=0.001) as app:
        together = await asyncio.gather(*(ask(app, path) for _ in range(5)))
        ids = [response.json()["id"] for response in [*together, await ask(app, path)]]
        timelines = [await app.http.get(f"/dashboard/requests/{name}") for name in ids]
        by_header = await app.http.get("/dashboard/requests/same")
    assert len(set(ids)) == 6
    assert {found.status_code for found in [*timelines, by_header]} == {200}
    lanes = list(itertools.chain.from_iterable(found.json()["related"] for found in timelines))
    assert len(set(lanes)) == len(lanes) == 6 * BODIES[path].get("n", 1)
    assert set(by_header.json()["related"]) <= set(lanes)


@pytest.mark.parametrize("options", [{}, {"background": True}, {"stream": True}])
async def test_stored_responses_do_not_replace_each_other(options: dict[str, Any]) -> None:
    async with running(seconds=0.001) as app:
        asked = [chr(97 + i) * (i + 1) for i in range(4)]
        answers = await asyncio.gather(
            *(ask(app, "/v1/responses", input=text, **options) for text in asked)
        )
        for text, answer in zip(asked, answers, strict=True):
            items = await app.http.get(f"/v1/responses/{_id(answer)}/input_items")
            assert items.json()["data"][0]["content"][0]["text"] == text


def _id(answer: httpx.Response) -> str:
    found = re.search(r'"id":"(resp_[^"]*)"', answer.text)
    return found[1]


def test_names() -> None:
    ids = RequestIds()
    first, second = ids.take("a-b:c.d"), ids.take("a-b:c.d")
    assert first == "a-b:c.d"
    assert choose_request_id(second) != second  # no client can take it
    for taken in (first, second):
        for prefix in ("chatcmpl-", "cmpl-", "msg_", "resp_", "embd-"):
            name = engine_request_id(prefix + taken)
            assert names_of(name) == (name, prefix + taken, "a-b:c.d")


def test_what_is_remembered_is_bounded_and_requests_under_way_are_not_forgotten() -> None:
    ids = RequestIds(remembered=3)
    assert ids.take("runs") == "runs"
    for i in range(10):
        ids.release(ids.take(str(i)))
    assert len(ids._ended) == 3
    assert ids.take("6") == "6"
    assert all(ids.take(name) != name for name in ("runs", "9", "7"))
