"""POST /tokenize and /detokenize."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.server.turns import TOKENS_PER_TURN, at_once, decoded, spelled
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.unit.server.fake_engine import Running

USER = {"role": "user", "content": "a"}


async def test_there_and_back(app: Running) -> None:
    response = await app.http.post("/tokenize", json={"prompt": "aé", "return_token_strs": True})
    body = response.json()
    assert body["tokens"] == [*"aé".encode()]
    assert body["count"] == 3
    assert body["max_model_len"] == app.engine.max_model_len
    assert body["token_strs"] == ["<0x61>", "<0xC3>", "<0xA9>"]
    plain = {"prompt": "aé", "add_special_tokens": False}
    assert (await app.http.post("/tokenize", json=plain)).json()["tokens"] == body["tokens"]
    back = await app.http.post("/detokenize", json={"tokens": body["tokens"]})
    assert back.json() == {"prompt": "aé"}


async def test_a_conversation_is_what_a_chat_would_have(app: Running) -> None:
    body = (await app.http.post("/tokenize", json={"messages": [USER]})).json()
    assert bytes(body["tokens"]) == b"user: a\nassistant:"
    assert body["count"] == (await app.chat()).json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [USER]}, "messages"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"messages": [USER], "chat_template": "{{ 1 }}"}, "chat_template"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "promt": 1}, "promt"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_refusals_name_the_field(
    path: str, fields: dict[str, Any], param: str, app: Running
) -> None:
    response = await app.http.post(path, json=fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    wrong = await app.http.post("/tokenize", json={"prompt": "a", "model": "other"})
    assert wrong.status_code == 404


@pytest.mark.parametrize("skip", [False, True])
def test_many_tokens_become_text_in_turns(skip: bool) -> None:
    """It is the text of the tokenizer, also where characters lie across turns."""
    tokenizer = load_tokenizer(Path(quire.__file__).parent / "assets" / "story")
    draw = random.Random(5)
    ids = [draw.randrange(tokenizer.vocab_size) for _ in range(2 * TOKENS_PER_TURN + 3)]
    work = decoded(tokenizer, ids, skip_special_tokens=skip)
    assert sum(1 for _ in work) == 2
    whole = at_once(decoded(tokenizer, ids, skip_special_tokens=skip))
    assert whole == tokenizer.decode(ids, skip_special_tokens=skip)
    assert at_once(spelled(tokenizer, ids)) == [*map(tokenizer.id_to_token, ids)]
