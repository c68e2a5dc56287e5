"""`suffix` through the official client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from quire.server.openai.infill import FORMATS, infill
from quire.text.tokenizers.dummy import DummyTokenizer
from tests.unit.server.fake_engine import MODEL, Running, running

TEXT: dict[str, Any] = {"model": MODEL, "prompt": "ab", "max_tokens": 4, "temperature": 0}
IDS = {"extra_body": {"return_token_ids": True}}


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if not known.apart])
async def test_the_middle_is_filled_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = FORMATS[name]
    ids = {known.begin: 1, known.hole: 2, known.end: 3, **dict.fromkeys(known.ends, ord("!"))}
    monkeypatch.setattr(DummyTokenizer, "token_to_id", lambda _, token: ids.get(token))
    async with running() as app:
        client = app.openai_client
        answer: Any = await client.completions.create(**TEXT, suffix="cd", **IDS)
        prompt = bytes(answer.choices[0].prompt_token_ids).decode()
        assert prompt == f"{known.begin}ab{known.hole}cd{known.end}"
        plain: Any = await client.completions.create(**TEXT, suffix="", **IDS)
        assert bytes(plain.choices[0].prompt_token_ids) == b"ab"
        for wrong in ({"echo": True}, {"prompt": [1, 2]}):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.completions.create(**{**TEXT, **wrong, "suffix": "cd"})
            assert caught.value.param == "suffix"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("CodeLlama", [1, *b"ab", 2, *b"cd", 3]), ("Codestral", [2, *b"cd", 1, *b"ab"])],
)
async def test_texts_tokenized_apart(
    name: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = FORMATS[name]
    ids = {**dict(zip(known.marks, (1, 2, 3), strict=False)), "▁<EOT>": ord("!")}
    monkeypatch.setattr(DummyTokenizer, "token_to_id", lambda _, token: ids.get(token))
    async with running() as app:
        client = app.openai_client
        answer: Any = await client.completions.create(**TEXT, suffix="cd", **IDS)
        assert answer.choices[0].prompt_token_ids == expected
        for long in ({"prompt": "a" * 5000}, {"suffix": "b" * 5000}):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.completions.create(**{**TEXT, "suffix": "cd", **long})
            assert caught.value.code == "context_length_exceeded"


async def test_a_suffix_gets_no_space_of_the_tokenizers_own() -> None:
    """As sentencepiece puts one before texts."""

    class Spaced:
        bos_token_id = 9

        def token_to_id(self, token: str) -> int:
            return {"▁<PRE>": 1, "▁<SUF>": 2, "▁<MID>": 3}[token]

        def least_tokens(self, text: str) -> int:
            return 0

    class Engine:
        tokenizer = Spaced()
        max_total_tokens = 99

        async def tokenize(self, text: str, add_special_tokens: bool) -> list[int]:
            assert not add_special_tokens
            return list(map(ord, f" {text}"))

    engine: Any = Engine()
    [prompt] = await infill(["ab"], "cd", FORMATS["CodeLlama"], engine)
    assert prompt == {"prompt_token_ids": [9, 1, *b" ab", 2, *b"cd", 3]}


async def test_other_models_fill_nothing_in(app: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await app.openai_client.completions.create(**TEXT, suffix="cd")
    assert caught.value.param == "suffix"
    assert "Qwen2.5-Coder" in caught.value.message


async def test_the_next_file_ends_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    known = FORMATS["StarCoder"]
    ids = {known.begin: 1, known.hole: 2, known.end: 3, "<file_sep>": ord("@")}
    monkeypatch.setattr(DummyTokenizer, "token_to_id", lambda _, token: ids.get(token))
    async with running() as app:
        client = app.openai_client
        # The model goes on from the ">" of the last mark: "?", "@" …
        [choice] = (await client.completions.create(**TEXT, suffix="cd")).choices
        assert (choice.text, choice.finish_reason) == ("?", "stop")
