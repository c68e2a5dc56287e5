"""Long answers are built in turns: between them the event loop serves others."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from quire.frontend.output import prompt_logprobs
from quire.server.openai import logprobs
from quire.server.turns import Turns, at_once, in_turns
from quire.text.detokenizer import IncrementalDetokenizer
from tests.unit.server.fake_engine import MODEL, Running, running

POSITIONS = 4
"""Of at least one log-probability each."""


class LoopTurns:
    """Numbers the event loop's turns, and counts what is done in each."""

    def __init__(self) -> None:
        self.done: Counter[int] = Counter()
        self._number = 0
        self._tick()

    def _tick(self) -> None:
        self._number += 1
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def counted(self, function: Any) -> Any:
        def call(*args: Any) -> Any:
            self.done[self._number] += 1
            return function(*args)

        return call

    def stop(self) -> Counter[int]:
        self._handle.cancel()
        return self.done


async def ask(app: Running, path: str, fields: dict[str, Any]) -> None:
    given: dict[str, Any] = {"model": MODEL, "temperature": 0, **fields}
    response = await app.http.post(path, json=given)
    assert response.status_code == 200, response.text


COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
LONG = {"prompt": "a" * 40, "max_tokens": 1}
CHAT_LONG = {"messages": [{"role": "user", "content": "a" * 40}], "max_tokens": 1}
CHAT_A = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 20}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {**LONG, "prompt_logprobs": 1}),
        (COMPLETIONS, {**LONG, "echo": True, "logprobs": 1}),
        (CHAT, {**CHAT_LONG, "prompt_logprobs": 1}),
    ],
)
async def test_positions_of_a_prompt(
    path: str, fields: dict[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.server.turns.LOGPROBS_PER_TURN", POSITIONS)
    async with running() as app:
        turns = LoopTurns()
        convert = turns.counted(prompt_logprobs.position_logprobs)
        monkeypatch.setattr(prompt_logprobs, "position_logprobs", convert)
        await ask(app, path, {**fields, "stream": stream})
        done = turns.stop()
    assert done.total() >= 39
    assert max(done.values()) <= POSITIONS


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": "a", "max_tokens": 20, "logprobs": 1, "n": 2}),
        (CHAT, {**CHAT_A, "logprobs": True, "top_logprobs": 1, "n": 2}),
        (
            RESPONSES,
            {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 1},
        ),
    ],
)
async def test_positions_of_an_answer(
    path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.server.turns.LOGPROBS_PER_TURN", POSITIONS)
    async with running() as app:
        turns = LoopTurns()
        monkeypatch.setattr(logprobs, "_reported", turns.counted(logprobs._reported))
        await ask(app, path, fields)
        done = turns.stop()
    assert done.total() >= 15
    assert max(done.values()) <= 2 * POSITIONS  # the end of a choice and the next one's beginning


async def test_the_text_of_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.server.turns.TOKENS_PER_TURN", POSITIONS)
    async with running() as app:
        turns = LoopTurns()
        append = turns.counted(IncrementalDetokenizer.append)
        monkeypatch.setattr(IncrementalDetokenizer, "append", append)
        response = await app.http.post("/detokenize", json={"tokens": [97] * 40})
        done = turns.stop()
    assert response.json()["prompt"] == "a" * 40
    assert done.total() == 40 // POSITIONS
    assert max(done.values()) == 1


async def test_work_in_turns_returns_its_result() -> None:
    def work() -> Turns[int]:
        yield
        yield
        return 5

    assert await in_turns(work()) == at_once(work()) == 5
