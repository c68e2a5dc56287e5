"""A file of requests, through the application, over the real front end and the echo model."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import EngineDeadError
from quire.server.batch import Batch, keep_succeeded, read_lines
from tests.faults.requests import extremes
from tests.unit.server.fake_engine import MODEL, Running, running

BODY = {"model": MODEL, "prompt": "a", "max_tokens": 3, "temperature": 0}


def line(custom_id: str, body: dict[str, Any] = BODY, **fields: Any) -> str:
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(request | fields)


async def answer(app: Running, *lines: str, done: set[str] | None = None) -> dict[Any, Any]:
    """The results by custom id."""
    out = io.BytesIO()
    batch = Batch(app.app, app.engine, out)
    numbered = iter(enumerate((each.encode() for each in lines), 1))
    await batch.run(numbered, done or set())
    results = [json.loads(each) for each in out.getvalue().splitlines()]
    assert len({result["id"] for result in results}) == len(results)
    assert batch.num_succeeded + batch.num_failed == len(results)
    return {result["custom_id"]: result for result in results}


async def test_every_line_is_answered(app: Running) -> None:
    messages = [{"role": "user", "content": "a"}]
    results = await answer(
        app,
        *(line(f"text {i}", {**BODY, "prompt": chr(97 + i % 20)}) for i in range(100)),
        line("chat", {"messages": messages, "max_tokens": 3}, url="/v1/chat/completions"),
        line("response", {"input": "a", "max_output_tokens": 3}, url="/v1/responses"),
    )
    assert len(results) == 102
    for i in range(100):
        response = results[f"text {i}"]["response"]
        assert response["status_code"] == 200
        assert response["body"]["choices"][0]["text"][0] == chr(98 + i % 20)
    assert results["chat"]["response"]["body"]["object"] == "chat.completion"
    assert results["response"]["response"]["body"]["status"] == "incomplete"


async def test_what_is_wrong_becomes_an_error(app: Running) -> None:
    results = await answer(
        app,
        line("good"),
        line("good", {**BODY, "max_tokens": 1}),
        line("bad value", {**BODY, "max_tokens": 0}),
        line("misspelt field", {**BODY, "max_token": 1}),
        line("model", {**BODY, "model": "other"}),
    )
    assert results["bad value"]["response"]["status_code"] == 400
    assert results["bad value"]["response"]["body"]["error"]["param"] == "max_tokens"
    assert results["misspelt field"]["response"]["body"]["error"]["param"] == "max_token"
    assert results["model"]["response"]["status_code"] == 404
    for bad in (
        "{",
        "[]",
        '"a"',
        "\udcff",
        line("x", url="/start_profile"),
        line("x", method="GET"),
        line("x", extra=1),
        line("x", {**BODY, "stream": True}),
        json.dumps({"custom_id": "x", "url": "/v1/completions"}),
        json.dumps({"custom_id": 1, "url": "/v1/completions", "body": {}}),
    ):
        out = io.BytesIO()
        batch = Batch(app.app, app.engine, out)
        await batch.run(iter([(7, bad.encode(errors="surrogateescape"))]), set())
        result = json.loads(out.getvalue())
        assert result["response"] is None
        assert result["error"]["code"] == "invalid_request"
        assert result["error"]["message"].startswith("Line 7: ")
        assert result["custom_id"] == ("x" if '"x"' in bad else None)


async def test_a_second_line_of_the_same_id(app: Running) -> None:
    out = io.BytesIO()
    batch = Batch(app.app, app.engine, out)
    await batch.run(iter([(1, line("a").encode()), (2, line("a").encode())]), set())
    assert (batch.num_succeeded, batch.num_failed) == (1, 1)
    assert b"line 1 has the same custom_id" in out.getvalue()


async def test_a_dead_engine_ends_the_run(app: Running) -> None:
    app.engine.shutdown()
    with pytest.raises(EngineDeadError):
        await answer(app, line("a"))


async def test_a_run_is_resumed(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert keep_succeeded(target) == set()
    async with running() as app:
        with target.open("wb") as out:
            batch = Batch(app.app, app.engine, out)
            lines = [line("good"), line("bad", {**BODY, "max_tokens": 0}), "{"]
            await batch.run(iter(enumerate(map(str.encode, lines), 1)), set())
            out.write(b'{"id": "batch_req_1", "custom_id": "half')
        assert keep_succeeded(target) == {"good"}
        [kept] = read_lines(target)
        assert json.loads(kept[1])["custom_id"] == "good"
        assert set(await answer(app, *lines, done={"good"})) == {"bad", None}


async def test_a_limit_above_the_room_is_lowered(app: Running) -> None:
    most = app.engine.max_model_len
    results = await answer(
        app,
        line("completion", {**BODY, "max_tokens": most}),
        line("more", {**BODY, "max_tokens": most + 1}),
        line("response", {"input": "a", "max_output_tokens": most}, url="/v1/responses"),
    )
    for name, param in (("completion", "max_tokens"), ("response", "max_output_tokens")):
        response = results[name]["response"]
        assert response["status_code"] == 200
        [warning] = response["body"]["warnings"]
        assert warning["param"] == param
        assert f"instead of {most}" in warning["message"]
    [warning] = results["more"]["response"]["body"]["warnings"]
    assert f"instead of {most + 1}" in warning["message"]


async def test_extremes_in_every_field_of_a_line(app: Running) -> None:
    """Of the line itself, and of its request; each gets an answer or an error of its own."""
    plain = json.loads(line("x"))
    bodies = [text for name in ("max_tokens", "temperature", "n") for text in extremes(BODY, name)]
    lines = [
        *(text for name in plain for text in extremes(plain, name)),
        *(line("@", {}).replace('"body": {}', f'"body": {body}') for body in bodies),
    ]
    out = io.BytesIO()
    batch = Batch(app.app, app.engine, out)
    await batch.run(iter(enumerate((each.encode() for each in lines), 1)), set())
    assert "y" in await answer(app, line("y"))
    assert batch.num_succeeded + batch.num_failed == len(lines)
    for result in map(json.loads, out.getvalue().splitlines()):
        if (response := result["response"]) is not None:
            assert response["status_code"] in (200, 400, 404), result
        else:
            assert result["error"]["message"].startswith("Line "), result
