"""Messages in the forms of other servers are those of OpenAI's API."""

from __future__ import annotations

from typing import Any

import pytest

from quire.server.message_parts import plain_parts
from tests.unit.server.fake_engine import MODEL, running

TEXTS = [["b"], [{"text": "b"}], [{"type": "input_text", "text": "b"}]]
ANSWER = [{"type": "output_text", "text": "b"}]


@pytest.mark.parametrize("parts", [*TEXTS, ANSWER])
async def test_texts_of_a_chat(parts: list[Any]) -> None:
    async with running() as app:
        asked = [
            await app.chat(messages=[{"role": "user", "content": content}], return_token_ids=True)
            for content in ([{"type": "text", "text": "b"}], parts)
        ]
        plain, other = (answer.json() for answer in asked)
        assert other["prompt_token_ids"] == plain["prompt_token_ids"]
        counted = await app.http.post(
            "/tokenize", json={"messages": [{"role": "user", "content": parts}]}
        )
        assert counted.json()["tokens"] == plain["prompt_token_ids"]


@pytest.mark.parametrize("parts", [*TEXTS, [{"type": "text", "text": "b"}]])
async def test_texts_of_a_response(parts: list[Any]) -> None:
    async with running() as app:
        body = {"model": MODEL, "input": [{"role": "user", "content": parts}], "temperature": 0}
        made = (await app.http.post("/v1/responses", json=body)).json()
        path = f"/v1/responses/{made['id']}/input_items"
        [item] = (await app.http.get(path)).json()["data"]
        assert item["content"] == [{"type": "input_text", "text": "b"}]


@pytest.mark.parametrize(
    ("thinking", "thoughts"),
    [("Hm.", "Hm."), ([{"type": "text", "text": "H"}, "m."], "Hm."), ("", None)],
)
async def test_thinking_is_reasoning(thinking: Any, thoughts: str | None) -> None:
    shown = "[{{ m.role }} {{ m.reasoning_content }}|{{ m.content }}]"
    template = "{% for m in messages %}" + shown + "{% endfor %}"
    part = {"type": "thinking", "thinking": thinking, "signature": "x"}
    text = {"type": "text", "text": "b"}
    user = {"role": "user", "content": "a"}
    async with running(chat_template=template) as app:

        async def prompt(*messages: Any) -> list[int]:
            answer = await app.chat(messages=[user, *messages, user], return_token_ids=True)
            assert answer.status_code == 200, answer.text
            ids: list[int] = answer.json()["prompt_token_ids"]
            return ids

        said: dict[str, Any] = {"role": "assistant", "reasoning_content": thoughts}
        found = await prompt({"role": "assistant", "content": [part, text]})
        assert found == await prompt({**said, "content": "b"})
        found = await prompt({"role": "assistant", "content": [part]})
        assert found == await prompt(said)
        known = {**said, "reasoning_content": "Known."}
        found = await prompt({**known, "content": [part, text]})
        assert found == await prompt({**known, "content": "b"})
        wrong = {"role": "user", "content": [part]}
        error = (await app.chat(messages=[wrong])).json()["error"]
        assert error["param"] == "messages[0].content[0].type"
        assert "audio" not in error["message"]


def test_what_is_no_other_form_stays() -> None:
    parts: list[Any] = [
        {"type": "image_url", "image_url": "data:x"},
        {"type": "input_audio", "text": "b"},
        {"type": "text", "text": None},
        {"type": ["text"], "text": "b"},
        None,
    ]
    expected = [{"type": "image_url", "image_url": {"url": "data:x"}}, *map(_copy, parts[1:])]
    plain_parts(parts)
    assert parts == expected
    for other in ("b", None, {"text": "b"}):
        plain_parts(other)


def _copy(part: Any) -> Any:
    return dict(part) if isinstance(part, dict) else part
