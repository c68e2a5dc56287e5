"""Responses for agents: the official client, unchanged, against a real server."""

from __future__ import annotations

import json
import random
import re
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

SHORT: dict[str, Any] = {"model": "tiny", "input": "Hi", "temperature": 0}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris in the spring", "Rome"]}, "days": {"const": 12}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
PATCH = """
start: "begin" LF line line? "end"
line: ("+" | "-") WORD LF
WORD: /[ab"\\\\]{1,3}/
LF: /\\n/
"""
PATCH_TEXT = re.compile(r'begin\n([+-][ab"\\]{1,3}\n){1,2}end')


def custom(syntax: str, definition: str) -> Any:
    grammar = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "patch", "description": "Edits.", "format": grammar}


@pytest.mark.parametrize(
    ("tool", "expected", "choice"),
    [
        (custom("lark", PATCH), PATCH_TEXT, {"type": "custom", "name": "patch"}),
        (custom("lark", PATCH), PATCH_TEXT, "required"),
        (custom("regex", '[ab]{2}\\n["c]'), re.compile('[ab]{2}\\n["c]'), "required"),
    ],
)
def test_an_input_of_a_grammar(
    client: openai.OpenAI, tool: Any, expected: re.Pattern[str], choice: Any
) -> None:
    fields = {**SHORT, "tools": [tool], "tool_choice": choice, "max_output_tokens": 400}
    found = client.responses.create(**fields)
    [call] = found.output
    assert call.type == "custom_tool_call"
    assert call.name == "patch"
    assert found.status == "completed"
    assert expected.fullmatch(call.input), call.input
    with client.responses.stream(**fields) as stream:
        pieces = [
            event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"
        ]
    assert "".join(pieces) == call.input
    result: Any = {
        "type": "custom_tool_call_output",
        "call_id": call.call_id,
        "output": [{"type": "input_text", "text": "done"}],
    }
    gone_on = client.responses.create(
        **{**SHORT, "input": [result], "previous_response_id": found.id, "max_output_tokens": 2}
    )
    assert gone_on.usage.input_tokens > found.usage.input_tokens


def test_a_grammar_holds_the_input_of_a_call_that_may_be_another(client: openai.OpenAI) -> None:
    """Inside a JSON string, as the regular expression that it is."""
    other = {**custom("lark", 'start: "a-b #&~" /[^a"]{2}/ "\\n" "Ü" "\\"q\\""'), "name": "other"}
    expected = {"patch": PATCH_TEXT, "other": re.compile('a-b #&~[^a"]{2}\nÜ"q"')}
    for tools in ([custom("lark", PATCH), other], [other, custom("lark", PATCH)]):
        fields = {**SHORT, "tools": tools, "tool_choice": "required", "max_output_tokens": 400}
        found = client.responses.create(**fields, parallel_tool_calls=False)
        [call] = found.output
        assert call.type == "custom_tool_call"
        assert found.status == "completed"
        assert expected[call.name].fullmatch(call.input), call.input
        assert not getattr(found, "warnings", None)


def test_a_grammar_that_is_none_is_named(client: openai.OpenAI) -> None:
    tools = [{"type": "web_search"}, custom("lark", "start: nothing")]
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            **SHORT, tools=tools, tool_choice={"type": "custom", "name": "patch"}
        )
    assert caught.value.param == "tools[1].format.definition"
    wrong = {**WEATHER, "parameters": {"type": "none"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            **SHORT, tools=[tools[0], wrong], tool_choice={"type": "function", "name": "weather"}
        )
    assert caught.value.param == "tools[1].parameters"


def test_a_call_that_is_cut_off_is_sent_back(client: openai.OpenAI) -> None:
    whole = client.responses.create(
        **SHORT, tools=[WEATHER], tool_choice="required", max_output_tokens=200
    )
    lengths = range(1, whole.usage.output_tokens + 1)
    for length in sorted(random.Random(5).sample(lengths, min(6, len(lengths)))):
        cut = client.responses.create(
            **SHORT,
            tools=[WEATHER],
            tool_choice={"type": "function", "name": "weather"},
            max_output_tokens=length,
        )
        told: Any = [{"role": "user", "content": "Hi"}, *cut.output]
        told += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
            for item in cut.output
            if item.type == "function_call"
        ]
        again = client.responses.create(**{**SHORT, "input": told}, max_output_tokens=1)
        assert again.output


class Answer(BaseModel):
    city: Literal["Paris", "Rome"]
    ok: bool


def test_answers_are_parsed(client: openai.OpenAI) -> None:
    found = client.responses.parse(**SHORT, text_format=Answer, max_output_tokens=300)
    assert found.status == "completed"
    assert isinstance(found.output_parsed, Answer)
    with client.responses.stream(**SHORT, text_format=Answer, max_output_tokens=300) as stream:
        last = stream.get_final_response()
    assert last.output_parsed == found.output_parsed
    both = client.responses.parse(
        **SHORT,
        text_format=Answer,
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=300,
    )
    assert both.output[0].type == "function_call"
    called = client.responses.parse(
        **SHORT,
        tools=[openai.pydantic_function_tool(Answer)["function"] | {"type": "function"}],  # type: ignore[list-item]
        tool_choice="required",
        max_output_tokens=300,
    )
    [call] = called.output[:1]
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"city", "ok"}


def test_what_has_no_effect_is_told(client: openai.OpenAI) -> None:
    found = client.responses.create(
        **SHORT,
        tools=[{"type": "web_search"}],
        reasoning={"summary": "auto"},
        text={"verbosity": "low"},
        max_output_tokens=2,
    )
    told = [notice["param"] for notice in found.warnings]  # type: ignore[attr-defined]
    assert sorted(told) == ["reasoning.summary", "text.verbosity", "tools[0]"]
