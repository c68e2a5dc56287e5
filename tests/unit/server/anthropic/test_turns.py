"""Conversations as Anthropic's clients write them, and what the chat template gets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request

from quire.server.anthropic.protocol import CountRequest, MessageParam
from quire.server.anthropic.turns import BLOCKS_PER_TURN, read_turns
from tests.unit.server.anthropic.test_fields import prompt, told
from tests.unit.server.anthropic.test_messages import ask, post
from tests.unit.server.fake_engine import running
from tests.unit.server.openai.test_tools import saying

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }})"
    "{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}

NO_IMAGE = "[image left out: this model reads text]"


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(name: str = "a", given: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"id_{name}", "name": name, "input": given, **more}


def result(content: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"id_{name}", "content": content, **more}


ADDITION = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "a"}}
REFERENCE = {"type": "tool_reference", "tool_name": "b"}
DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "Facts."},
    "title": "Book",
    "context": None,
    "citations": {"enabled": True},
}
SEARCH = {"type": "search_result", "title": "Page", "source": "here", "content": [text("Words.")]}
CONTENT = {"type": "document", "source": {"type": "content", "content": [text("x"), text("y")]}}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user(text("a"), text("b"))], "<user>a\nb"),
        ([user(text("a")), {"role": "user", "content": "b"}], "<user>a\nb"),
        ([user()], "<user>"),
        ([{"role": "user", "content": None}], "<user>"),
        ([user(text("a")), assistant(), user(text("b"))], "<user>a<assistant><user>b"),
        (
            [user(text("a")), {"role": "system", "content": "c"}, user(text("b"))],
            "<user>a<system>c<user>b",
        ),
        (
            [{"role": "system", "content": "c", "clear_at": "next_user_message"}, user(text("b"))],
            "<user>b",
        ),
        ([user(text("a")), {"role": "system", "content": [ADDITION]}], "<user>a"),
        (
            [user(text("a")), {"role": "system", "content": [ADDITION, text("c")]}],
            "<user>a<system>c",
        ),
        ([user(DOCUMENT)], "<user>Book\nFacts."),
        ([user(CONTENT)], "<user>x\ny"),
        ([user(SEARCH)], "<user>Page\nhere\nWords."),
        (
            [
                user(text("a")),
                assistant({"type": "redacted_thinking", "data": "E"}, text("b")),
                user(text("c")),
            ],
            "<user>a<assistant>b<user>c",
        ),
        (
            [
                user(text("a")),
                assistant(
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                    text("b"),
                ),
                user(text("c")),
            ],
            "<user>a<assistant>b<user>c",
        ),
        (
            [
                user(text("a")),
                assistant(use(given={"b": 1}, caller={"type": "direct"})),
                user(result("d"), text("e")),
            ],
            '<user>a<assistant>a{"b": 1}<tool>d<user>e',
        ),
        (
            [user(text("a")), assistant(use()), user(result([text("d"), PNG, SEARCH]))],
            f"<user>a<assistant>a{{}}<tool>d\n{NO_IMAGE}\nPage\nhere\nWords.",
        ),
        (
            [user(text("a")), assistant(use()), user(result(None, is_error=True))],
            "<user>a<assistant>a{}<tool>Error: ",
        ),
        (
            [user(text("a")), assistant(use()), user(result([REFERENCE]))],
            "<user>a<assistant>a{}<tool>[tool: b]",
        ),
    ],
)  # fmt: skip
async def test_prompts(messages: list[Any], expected: str) -> None:
    async with running(chat_template=TEMPLATE) as app:
        assert await prompt(app, messages=messages) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        ("", {}),
        ('{"b": 1}', {"b": 1}),
        ('{"b": ', {"arguments": '{"b": '}),
        ("words", {"arguments": "words"}),
        ([1], {"arguments": "[1]"}),
        ({"arguments": '{"b": '}, {"arguments": '{"b": '}),
    ],
)
async def test_calls_that_were_cut_off(given: Any, expected: dict[str, Any]) -> None:
    messages = [user(text("a")), assistant(use(given=given)), user(result("d"))]
    async with running(chat_template=TEMPLATE) as app:
        found = await prompt(app, messages=messages)
        assert found == f"<user>a<assistant>a{json.dumps(expected)}<tool>d"


async def test_a_long_conversation_leaves_the_loop_to_others() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    blocks: Any = [text("a")] * BLOCKS_PER_TURN
    body = CountRequest(model="echo", messages=[MessageParam("user", blocks)] * 4)
    beside = asyncio.create_task(others())
    [turn] = await read_turns(Request({"type": "http"}), body)
    beside.cancel()
    assert len(turn.texts) == 4 * BLOCKS_PER_TURN
    assert turns >= 3


async def test_what_the_model_does_not_see_is_told() -> None:
    messages = [
        user(text("a")),
        assistant({"type": "redacted_thinking", "data": "E"}, use()),
        user(result([PNG, {"type": "document", "source": {"type": "base64", "data": ""}}])),
    ]
    async with saying("ok", chat_template=TEMPLATE) as app:
        found = told(await ask(app, messages=messages, max_tokens=9))
        where = "messages[2].content[0].content"
        assert set(found) == {"messages[1].content[0]", f"{where}[0]", f"{where}[1]"}
        refused = await post(app, messages=[user({**DOCUMENT, "source": {"type": "url"}})])
        assert "document of type url" in refused.json()["error"]["message"]


async def test_tools_that_are_added() -> None:
    new = {"type": "tool_definition", "definition": {"name": "b", "input_schema": {}}}
    async with saying("ok", chat_template=TEMPLATE) as app:
        messages = [user(text("a")), {"role": "system", "content": [ADDITION]}]
        assert set(told(await ask(app, messages=messages))) == {"messages[1].content[0]"}
        for block in ({**ADDITION, "tool": new}, {"type": "tool_addition"}):
            messages[1] = {"role": "system", "content": [block]}
            refused = await post(app, messages=messages)
            assert "send it in tools" in refused.json()["error"]["message"]


async def test_an_answer_that_is_begun() -> None:
    async with running(chat_template=TEMPLATE) as app:
        for begun in (assistant(text("ab")), {"role": "assistant", "content": "ab"}):
            answer = await ask(app, messages=[user(text("a")), begun], max_tokens=3)
            assert answer["content"][0]["text"] == "cde"
        for empty in (assistant(), {"role": "assistant", "content": ""}):
            await ask(app, messages=[user(text("a")), empty], max_tokens=3)
