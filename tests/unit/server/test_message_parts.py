"""Messages in the forms of other servers are those of OpenAI's API."""

from __future__ import annotations

from typing import Any

import pytest

from quire.server.message_parts import plain_parts, plain_reasoning
from tests.unit.server.fake_engine import MODEL, Running, running

TEXTS = [["b"], [{"text": "b"}], [{"type": "input_text", "text": "b"}]]
ANSWER = [{"type": "output_text", "text": "b"}]


@pytest.mark.parametrize("parts", [*TEXTS, ANSWER])
async def test_texts_of_a_chat(parts: list[Any], app: Running) -> None:
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
async def test_texts_of_a_response(parts: list[Any], app: Running) -> None:
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


TOOL = {"name": "f", "description": "d", "parameters": {"type": "object"}}
OTHERS = [
    {"type": "function", **TOOL},
    TOOL,
    {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {}},
    {"name": "f", "description": "d", "input_schema": {"type": "object"}, "type": "custom"},
]


@pytest.mark.parametrize("tool", OTHERS)
async def test_tools_of_other_apis(tool: Any) -> None:
    template = "{{ tools }}{{ messages[0].content }}"
    plain = {"tools": [{"type": "function", "function": TOOL}], "return_prompt_text": True}
    async with running(chat_template=template) as app:
        for ours, theirs in (
            ("required", ["any", {"type": "any"}, {"type": "required"}]),
            ("none", ["none", {"type": "none"}]),
            (
                {"type": "function", "function": {"name": "f"}},
                [{"type": "tool", "name": "f"}, {"type": "function", "name": "f"}],
            ),
        ):
            body = (await app.chat(**plain, tool_choice=ours)).json()
            for choice in theirs:
                answer = await app.chat(**{**plain, "tools": [tool]}, tool_choice=choice)
                assert answer.status_code == 200, answer.text
                assert answer.json()["prompt_text"] == body["prompt_text"]
                assert answer.json()["choices"] == body["choices"] or ours != "none"


async def test_tools_that_nobody_runs_are_refused(app: Running) -> None:
    for tool in ({"type": "web_search", "name": "f"}, {}):
        answer = await app.chat(tools=[tool], tool_choice="any")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("tools[0]")
    for kind in ([], {}):
        answer = await app.chat(tools=[{"type": "function", **TOOL}], tool_choice={"type": kind})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tool_choice.type"


async def test_shorter_forms_of_a_chat(app: Running) -> None:
    """One part instead of a list, a format by its type, and names that say nothing."""
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "content": part, "name": "", "tool_call_id": ""}
    answer = await app.chat(messages=[message], response_format="text", return_prompt_text=True)
    assert answer.json()["prompt_text"] == "user: a\nassistant:"


async def test_values_that_ask_for_nothing(app: Running) -> None:
    fields = {"temperature": "", "stream": "", "reasoning_effort": "default"}
    answer = (await app.chat(model="", **fields)).json()
    assert {each["param"] for each in answer["warnings"]} == {*fields}
    assert answer["model"] == MODEL
    async with running(strict_fields=True) as app:
        assert (await app.chat(temperature="")).status_code == 400


async def test_a_response_takes_messages_of_chats(app: Running) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given: list[Any] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "d"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"type": "function_call_output", "call_id": "c", "output": None},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
    ]
    made = (await app.http.post("/v1/responses", json={"model": MODEL, "input": given})).json()
    assert [each["param"] for each in made["warnings"]] == ["input[5]"]
    path = f"/v1/responses/{made['id']}/input_items?order=asc"
    found = (await app.http.get(path)).json()["data"]
    kinds = ["message", "message", "function_call", "function_call_output"]
    assert [item["type"] for item in found] == [*kinds, *kinds[2:]]
    assert found[3]["output"] == [{"type": "input_text", "text": "d"}]
    assert found[5]["output"] == ""


async def test_a_response_takes_json_as_objects(app: Running) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": "é"}}
    told = {"type": "function_call_output", "call_id": "c", "output": {"b": [1]}}
    body = {"model": MODEL, "input": [call, told], "temperature": 0}
    made = (await app.http.post("/v1/responses", json=body)).json()
    path = f"/v1/responses/{made['id']}/input_items?order=asc"
    first, second = (await app.http.get(path)).json()["data"]
    assert (first["arguments"], second["output"]) == ('{"a": "é"}', '{"b": [1]}')


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"effort": "low"}, {"reasoning_effort": "low"}),
        ({"enabled": False, "effort": None}, {"reasoning_effort": "none"}),
        ({"enabled": True}, {"reasoning_effort": "medium"}),
        (
            {"effort": "high", "exclude": True},
            {"reasoning_effort": "high", "include_reasoning": False},
        ),
        ({"exclude": True, "enabled": None}, {"include_reasoning": False}),
    ],
)
def test_reasoning_of_another_api(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    body = {"reasoning": given}
    plain_reasoning(body)
    assert body == wanted
    for own, others in (
        (given, dict.fromkeys(wanted, "xhigh")),
        ({**given, "max_tokens": 5}, {}),
        ({**given, "enabled": "true"}, {}),
        ({**given, "exclude": 1}, {}),
    ):
        body = {"reasoning": own, **others}
        plain_reasoning(body)
        assert "reasoning" in body, "which is refused"
