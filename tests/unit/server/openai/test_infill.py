"""`suffix` through the official client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from quire.server.openai.infill import FORMATS
from quire.text.dummy import DummyTokenizer
from tests.unit.server.fake_engine import MODEL, Running, running

TEXT: dict[str, Any] = {"model": MODEL, "prompt": "ab", "max_tokens": 4, "temperature": 0}
IDS = {"extra_body": {"return_token_ids": True}}


def asked(app: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://test/v1", api_key="none", max_retries=0, http_client=app.http
    )


@pytest.mark.parametrize("name", FORMATS)
async def test_the_middle_is_filled_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = FORMATS[name]
    ids = {known.begin: 1, known.hole: 2, known.end: 3, **dict.fromkeys(known.ends, ord("!"))}
    monkeypatch.setattr(DummyTokenizer, "token_to_id", lambda _, token: ids.get(token))
    async with running() as app:
        client = asked(app)
        answer: Any = await client.completions.create(**TEXT, suffix="cd", **IDS)
        prompt = bytes(answer.choices[0].prompt_token_ids).decode()
        assert prompt == f"{known.begin}ab{known.hole}cd{known.end}"
        plain: Any = await client.completions.create(**TEXT, suffix="", **IDS)
        assert bytes(plain.choices[0].prompt_token_ids) == b"ab"
        for wrong in ({"echo": True}, {"prompt": [1, 2]}):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.completions.create(**{**TEXT, **wrong, "suffix": "cd"})
            assert caught.value.param == "suffix"


async def test_other_models_fill_nothing_in() -> None:
    async with running() as app:
        with pytest.raises(openai.BadRequestError) as caught:
            await asked(app).completions.create(**TEXT, suffix="cd")
        assert caught.value.param == "suffix"
        assert "Qwen2.5-Coder" in caught.value.message


async def test_the_next_file_ends_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    known = FORMATS["StarCoder"]
    ids = {known.begin: 1, known.hole: 2, known.end: 3, "<file_sep>": ord("@")}
    monkeypatch.setattr(DummyTokenizer, "token_to_id", lambda _, token: ids.get(token))
    async with running() as app:
        client = asked(app)
        # The model goes on from the ">" of the last mark: "?", "@" …
        [choice] = (await client.completions.create(**TEXT, suffix="cd")).choices
        assert (choice.text, choice.finish_reason) == ("?", "stop")
