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


LONG = [
    user(text("go")),
    *(
        message
        for name in "abc"
        for message in (assistant(use(name, {"q": name})), user(result(name * 50, name)))
    ),
]


def clear(**fields: Any) -> dict[str, Any]:
    return {"edits": [{"type": "clear_tool_uses_20250919", **fields}]}


def uses(value: int) -> dict[str, Any]:
    return {"type": "tool_uses", "value": value}


async def test_old_results_are_cleared() -> None:
    async with running(chat_template=TEMPLATE) as app:
        whole = await prompt(app, messages=LONG)
        for untouched in (
            clear(),  # a prompt of 100,000 tokens triggers it
            clear(trigger={"type": "tool_uses", "value": 5}),
            clear(trigger=uses(1), keep={"type": "tool_uses", "value": 5}),
            clear(
                trigger=uses(1),
                keep=uses(1),
                clear_at_least={"type": "input_tokens", "value": 5000},
            ),
        ):
            assert await prompt(app, messages=LONG, context_management=untouched) == whole
        trigger = {"type": "input_tokens", "value": 50}
        edits = clear(trigger=trigger, keep=uses(1), exclude_tools=["a"], clear_tool_inputs=True)
        found = await prompt(app, messages=LONG, context_management=edits)
        assert "a" * 50 in found
        assert "b" * 50 not in found
        assert "c" * 50 in found
        assert '{"q": "a"}' in found
        assert '{"q": "b"}' not in found
        assert '{"q": "c"}' in found
        fields = {"messages": LONG, "max_tokens": 3}
        [edit] = (await ask(app, **fields, context_management=edits))["context_management"][
            "applied_edits"
        ]
        assert edit == {
            "type": "clear_tool_uses_20250919",
            "cleared_tool_uses": 1,
            "cleared_input_tokens": len(whole) - len(found),
        }
        body = {"messages": LONG, "max_tokens": None, "context_management": edits}
        counted = (await post(app, "/v1/messages/count_tokens", **body)).json()
        assert counted["input_tokens"] == len(found)
        assert counted["context_management"] == {"original_input_tokens": len(whole)}


async def test_old_thinking_is_cleared() -> None:
    def thought(words: str) -> dict[str, Any]:
        return assistant({"type": "thinking", "thinking": words, "signature": "x"}, text("ok"))

    messages = [user(text("1")), thought("A"), user(text("2")), thought("B"), user(text("3"))]
    async with running(chat_template=TEMPLATE) as app:
        for keep, shown in [
            ("all", "(A)(B)"),
            ({"type": "all"}, "(A)(B)"),
            ({"type": "thinking_turns", "value": 2}, "(A)(B)"),
            ({"type": "thinking_turns", "value": 1}, "(B)"),
            (None, "(B)"),
        ]:
            edit = {"type": "clear_thinking_20251015", **({} if keep is None else {"keep": keep})}
            fields = {"messages": messages, "context_management": {"edits": [edit]}}
            found = await prompt(app, **fields)
            assert [word for word in ("(A)", "(B)") if word in found] == [
                f"({letter})" for letter in shown if letter.isalpha()
            ]


async def test_a_summary_is_refused_when_it_would_be_made() -> None:
    def compact(value: int) -> dict[str, Any]:
        trigger = {"type": "input_tokens", "value": value}
        return {"edits": [{"type": "compact_20260112", "trigger": trigger}]}

    async with running(chat_template=TEMPLATE) as app:
        assert (await post(app, max_tokens=3, context_management=compact(100))).status_code == 200
        refused = await post(app, messages=LONG, context_management=compact(100))
        assert refused.status_code == 400
        assert "context_management.edits" not in refused.json()["error"]["message"]
        assert "summarize" in refused.json()["error"]["message"]
