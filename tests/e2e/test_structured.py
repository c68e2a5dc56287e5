"""Structured output and tools through the official OpenAI client, against a real server."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.e2e.serving import Server

MESSAGES: list[Any] = [{"role": "user", "content": "Where is it?"}]
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "zip", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "find", "description": "Find a place.", "parameters": PLACE},
    },
    {"type": "function", "function": {"name": "stop"}},
]
SPACED = {"whitespace_pattern": " "}
"""Random weights would else go on with white space for ever."""


def check_place(text: str | None) -> None:
    found = json.loads(text or "")
    assert list(found) == ["city", "zip", "days"]
    assert len(found["city"]) <= 8
    assert re.fullmatch("[0-9]{5}", found["zip"])
    assert 1 <= found["days"] <= 14


def test_json_schema_of_the_response_format(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "place", "schema": PLACE, "strict": True},
        },
        max_tokens=300,
        seed=1,
    ).choices[0]
    if answer.finish_reason == "stop":  # else in the middle of white space
        check_place(answer.message.content)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_structure_streams_the_same(client: openai.OpenAI, temperature: int) -> None:
    fields: dict[str, Any] = {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 200,
        "seed": 3,
        "temperature": temperature,
        "extra_body": {"structured_outputs": {"json": PLACE, **SPACED}},
    }
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason == "stop"
    check_place(whole.message.content)
    chunks = [c.choices[0] for c in client.chat.completions.create(**fields, stream=True)]
    assert "".join(c.delta.content or "" for c in chunks) == whole.message.content


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": r"[a-f]{4}-\d+x"}, r"[a-f]{4}-\d+x"),
        ({"structured_outputs": {"regex": "(ab|cd){2,5}"}}, "(ab|cd){2,5}"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"guided_grammar": 'root ::= "x" [yz]+ "x"'}, "x[yz]+x"),
    ],
)
def test_regex_choice_and_grammar(
    client: openai.OpenAI, fields: dict[str, Any], pattern: str
) -> None:
    for seed in range(3):
        answer = client.completions.create(
            model="tiny", prompt="once", max_tokens=400, seed=seed, extra_body=fields
        ).choices[0]
        assert answer.finish_reason == "stop"
        assert re.fullmatch(pattern, answer.text)


def test_many_at_once_beside_free_text(client: openai.OpenAI, server: Server) -> None:
    """Grammars that nobody has asked for yet are compiled while others run."""

    def ask(i: int) -> str | None:
        shape = {"guided_regex": f"[a-z]{{{i + 1}}};{{2}}"} if i % 2 else {}
        answer = client.completions.create(
            model="tiny", prompt="once", max_tokens=40, seed=i, temperature=1, extra_body=shape
        )
        return answer.choices[0].text

    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(ask, range(16)))
    assert together == [ask(i) for i in range(16)]
    for i in range(1, 16, 2):
        assert re.fullmatch(f"[a-z]{{{i + 1}}};;", together[i] or "")
    server.wait_until_idle()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"guided_regex": "a(b"}, "regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "regexp"),
        ({"guided_regex": "a", "min_tokens": 2}, "min_tokens"),
    ],
)
def test_what_cannot_be_served_is_the_clients_error(
    client: openai.OpenAI, fields: dict[str, Any], word: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=word):
            client.completions.create(model="tiny", prompt="once", stream=stream, extra_body=fields)


def call_tools(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=TOOLS, max_tokens=300, **fields
    )


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
PAIR = {
    "type": "object",
    "properties": {"a": DIGIT, "in": {"type": "object", "properties": {"b": DIGIT}}},
    "required": ["a"],
}
"""Without `additionalProperties`."""


def in_response_format(schema: dict[str, Any]) -> dict[str, Any]:
    shape = {"name": "pair", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": shape}}


def in_tools(choice: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": PAIR}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}


@pytest.mark.parametrize(
    "fields",
    [
        in_response_format(PAIR),
        {"extra_body": {"structured_outputs": {"json": PAIR}}},
        {"extra_body": {"guided_json": PAIR}},
        in_tools("required"),
        in_tools({"type": "function", "function": {"name": "f"}}),
    ],
    ids=["response_format", "structured_outputs", "guided_json", "required", "named"],
)
def test_objects_have_no_properties_that_their_schema_does_not_name(
    client: openai.OpenAI, fields: dict[str, Any]
) -> None:
    answers = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=300, n=4, seed=1, temperature=1.5, **fields
    )
    found = []
    for choice in answers.choices:
        calls = choice.message.tool_calls
        if choice.finish_reason in ("stop", "tool_calls"):
            found.append(calls[0].function.arguments if calls else choice.message.content)
    assert found
    for text in found:
        value = json.loads(text)
        assert value.keys() <= {"a", "in"}
        assert value.get("in", {}).keys() <= {"b"}


@pytest.mark.parametrize(
    "fields",
    [
        in_response_format({**PAIR, "minProperties": 3, "additionalProperties": True}),
        {
            "extra_body": {
                "structured_outputs": {
                    "json": {**PAIR, "minProperties": 3},
                    "disable_additional_properties": False,
                }
            }
        },
    ],
    ids=["true", "option"],
)
def test_a_schema_or_an_option_allows_other_properties(
    client: openai.OpenAI, fields: dict[str, Any]
) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=40, seed=1, **fields
    )
    assert answer.choices[0].message.content
    closed = in_response_format({**PAIR, "minProperties": 3})
    with pytest.raises(openai.BadRequestError, match="json_schema"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, **closed)


def test_a_named_tool(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "find"}}
    answer = call_tools(client, tool_choice=choice, seed=5).choices[0]
    [call] = answer.message.tool_calls
    assert call.function.name == "find"
    assert call.id.startswith("call_")
    if answer.finish_reason == "tool_calls":
        check_place(call.function.arguments)
        assert answer.message.content is None


def test_required_tools_stream_the_same(client: openai.OpenAI) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "seed": 11}
    answer = call_tools(client, **fields).choices[0]
    [whole] = answer.message.tool_calls
    assert whole.function.name in ("find", "stop")
    name, arguments, reason = "", "", None
    for chunk in call_tools(client, **fields, stream=True):
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        assert not choice.delta.content
        for call in choice.delta.tool_calls or []:
            assert call.index == 0
            assert bool(call.id) == bool(call.function.name)
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, arguments) == (whole.function.name, whole.function.arguments)
    assert reason == answer.finish_reason


def test_a_tools_answer_goes_back(client: openai.OpenAI) -> None:
    called = call_tools(client, tool_choice="required", seed=2).choices[0].message
    call = called.tool_calls[0]
    echoed = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": "find", "arguments": "{}"}}
        ],
    }
    answer = {"role": "tool", "tool_call_id": call.id, "content": "Paris"}
    again = client.chat.completions.create(
        model="tiny", messages=[*MESSAGES, echoed, answer], tools=TOOLS, tool_choice="none"
    )
    assert again.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),  # its template has no format for calls
        ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "none"),
    ],
)
def test_tools_that_cannot_be_served(
    client: openai.OpenAI, fields: dict[str, Any], word: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=word):
        call_tools(client, **fields)
