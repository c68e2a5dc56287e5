"""What a text is held to: behind the reasoning, and in strict calls; whom refusals name."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.errors import NOT_FOLLOWED
from quire.core.structured_outputs import ReasoningMarks, StructuredOutputsParams
from quire.server.http.body import convert
from quire.server.openai.protocol import ChatRequest
from quire.server.openai.sampling import chat_params
from quire.server.openai.tools import read_tools, with_tools
from quire.server.tools.table import TOOL_PARSERS, choose_parsers
from quire.text.tokenizers.dummy import DummyTokenizer
from quire.text.tokenizers.vocabulary import byte_tokenizer
from tests.matching import accepts
from tests.unit.server.fake_engine import Running, running
from tests.unit.server.tools.written import written_call

BYTES = byte_tokenizer()
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"type": "string", "maxLength": 9}},
}
MESSAGES = [{"role": "user", "content": "a"}]
UNSERVED = {"type": "array", "uniqueItems": True}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def held_to(
    parser: str = "none", reasoning: str = "none", **fields: Any
) -> StructuredOutputsParams:
    """What the text of a chat is held to, under these parsers."""
    request = convert({"messages": MESSAGES, **fields}, ChatRequest, "")
    reading = read_tools(request, choose_parsers(None, parser, reasoning))
    params = with_tools(chat_params(request, {}), request, reading, DummyTokenizer(300))
    assert params.structured_outputs is not None
    return params.structured_outputs


@pytest.mark.parametrize(
    ("given", "good", "bad"),
    [
        ({"type": "json_schema", "schema": CITY}, '{"city":"Rome"}', '{"city":1}'),
        ({"type": "json_object", "schema": CITY}, '{"city":"Rome"}', "{}"),
        ({"type": "json_schema", "json_schema": {"schema": CITY}}, '{"city":"Rome"}', "{}"),
        ({"type": "json_object", "value": CITY}, '{"city":"Rome"}', "{}"),
        (
            {
                "type": "structural_tag",
                "triggers": ["<a>"],
                "structures": [{"begin": "<a>", "schema": CITY, "end": "</a>"}],
            },
            'So <a>{"city":"Rome"}</a>.',
            "So <a>{}</a>.",
        ),
    ],
)
def test_formats_of_other_servers(given: dict[str, Any], good: str, bad: str) -> None:
    params = held_to(response_format=given)
    assert accepts(params, good)
    assert not accepts(params, bad)


@pytest.mark.parametrize("schema", [{}, {"properties": {"a": {"type": "integer"}}}])
def test_arguments_are_objects(schema: dict[str, Any]) -> None:
    tools = [tool("f", parameters=schema)]
    named = held_to(tools=tools, tool_choice={"function": {"name": "f"}})
    for text, allowed in (('{"a":1}', True), ("false", False), ("1", False)):
        assert accepts(named, text) is allowed
        call = f'[{{"name":"f","parameters":{text}}}]'
        assert accepts(held_to(tools=tools, tool_choice="required"), call) is allowed


def test_the_reasoning_before_strict_calls_holds_no_call() -> None:
    """A reader takes the mark for the end of the reasoning, and what follows for a call."""
    strict = [tool("f", parameters=CITY, strict=True)]
    held = held_to("hermes", "qwen3", tools=strict)
    assert accepts(held, "<think>A tool_call.</think>Yes.")
    assert not accepts(held, '<think>A <tool_call>{"name": "g", "arguments": {}}</think>Yes.')
    free = held_to("hermes", "qwen3", tools=strict, tool_choice="required")
    assert accepts(
        free, '<think>A <tool_call>.</think>[{"name": "f", "parameters": {"city": "x"}}]'
    )


def test_a_structure_begins_behind_the_reasoning() -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    wanted = held_to(reasoning="qwen3", response_format=shape)
    assert wanted.reasoning == ReasoningMarks(("<think>",), ("</think>",))
    assert accepts(wanted, '<think>\nA {"city"?\n</think>\n\n{"city": "Rome"}')
    assert accepts(wanted, '{"city": "Rome"}')
    assert not accepts(wanted, "<think>\nNo")
    assert held_to(response_format=shape).reasoning is None


def test_calls_that_are_asked_for_come_behind_the_reasoning() -> None:
    call = '{"city":"Rome"}'
    tools = [tool("f"), tool("weather", parameters=CITY)]
    wanted = held_to(reasoning="qwen3", tools=tools, tool_choice="required")
    assert accepts(wanted, f'<think>x</think>[{{"name":"weather","parameters":{call}}}]')
    assert not accepts(wanted, '[{"name":"weather","parameters":{"city":"much too long"}}]')
    choice = {"type": "function", "function": {"name": "weather"}}
    wanted = held_to(reasoning="qwen3", tools=tools, tool_choice=choice)
    assert accepts(wanted, f"<think>x</think>\n{call}")


@pytest.mark.parametrize("name", [name for name, known in TOOL_PARSERS.items() if known.envelopes])
def test_strict_calls_are_held_to_their_schemas_if_they_come(name: str) -> None:
    tools = [tool("weather", parameters=CITY, strict=True), tool("loose", parameters=CITY)]
    wanted = held_to(name, tools=tools)
    assert accepts(wanted, "Nothing to call.")
    for function, arguments, held in (
        ("weather", {"city": "Rome"}, True),
        ("weather", {"town": "Rome"}, False),
        ("weather", {"city": "much too long"}, False),
        ("loose", {"any": [1]}, True),
        ("other", {}, False),
    ):
        assert accepts(wanted, written_call(name, function, arguments)) == held


async def test_what_strict_calls_are_not_held_to_is_refused() -> None:
    async with running(chat_template="{{ messages }}", tool_call_parser="pythonic") as app:
        parameters = {"type": "object", "minProperties": 1}
        response = await app.chat(tools=[tool("f"), tool("g", parameters=parameters, strict=True)])
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == "tools"
        assert "g: its parameters have minProperties" in error["message"]
        assert (await app.chat(tools=[tool("f"), tool("g", strict=True)])).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": UNSERVED}, "guided_json"),
        ({"guided_regex": "a(b"}, "guided_regex"),
        ({"structured_outputs": {"grammar": "start: nope"}}, "structured_outputs.grammar"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": UNSERVED},
                }
            },
            "response_format.json_schema.schema",
        ),
        (
            {
                "tools": [tool("f"), tool("g", parameters=UNSERVED)],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            "tools[1].function.parameters",
        ),
        (
            {
                "tools": [tool("f"), tool("g", parameters=UNSERVED)],
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
        ),
        (
            {"tools": [tool("f"), tool("g", parameters=UNSERVED, strict=True)]},
            "tools[1].function.parameters",
        ),
    ],
)
async def test_a_refusal_names_the_field_that_was_sent(fields: dict[str, Any], param: str) -> None:
    template = "{{ messages[0].content }}<tool_call>"
    async with running(chat_template=template) as app:
        for stream in (False, True):
            response = await app.chat(stream=stream, **fields)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == param
            assert error["message"].startswith(param)


async def test_a_structure_that_turns_out_to_be_too_much_is_the_requests_fault(
    app: Running,
) -> None:
    executor = app.core.executor
    usual = executor.execute

    def execute(batch: SchedulerOutput) -> ModelOutput:
        output = usual(batch)
        for i, name in enumerate(batch.request_ids):
            if len(executor.tokens[name]) == 5:  # type: ignore[attr-defined]
                output.sampled_token_ids[i] = -1
                output.errors[name] = f"{NOT_FOLLOWED}too many states."
        return output

    executor.execute = execute  # type: ignore[method-assign]
    response = await app.complete(max_tokens=9)
    assert response.status_code == 400
    assert "too many states" in response.json()["error"]["message"]
    response = await app.complete(max_tokens=9, stream=True)
    assert response.text.count("invalid_request_error") == 1
    assert (await app.complete(max_tokens=2)).status_code == 200
    assert app.core.scheduler.kv.pool.num_used == 0
