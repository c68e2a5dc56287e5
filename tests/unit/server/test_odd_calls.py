"""Tool calls whose arguments or names JSON cannot hold, through every API, and sent back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.server.anthropic.answer import call_input
from quire.server.anthropic.protocol import Message, MessageUsage
from quire.server.http.json_text import encode, read_object
from tests.unit.server.fake_engine import Running
from tests.unit.server.openai import test_tools as chats
from tests.unit.server.openai.test_tools import saying

CALL = '<tool_call>{{"name": "weather", "arguments": {}}}</tool_call>'
XML = "<tool_call><function=weather><parameter=city>{}</parameter></function></tool_call>"
CALLS = [
    ("hermes", CALL.format('{"city": NaN}'), {"city": None}),
    ("hermes", CALL.format('{"city": [1e999, -Infinity, 1.5]}'), {"city": [None, None, 1.5]}),
    ("hermes", CALL.format(r'{"city": "\ud800"}'), {"city": "\ufffd"}),
    ("hermes", CALL.format(r'"{\"city\": \"\ud800\"}"'), {"city": "\ufffd"}),
    ("hermes", CALL.format(r'"{\"city\": \"\ud83d\ude00\"}"'), {"city": "😀"}),
    ("hermes", CALL.format('{"city": 36893488147419103232}'), {"city": 2**65}),
    ("qwen3_coder", XML.format("NaN"), {"city": "NaN"}),
    ("qwen3_coder", XML.format("1e999"), {"city": "1e999"}),
    ("qwen3_coder", XML.format("[1, Infinity]"), {"city": "[1, Infinity]"}),
    ("qwen3_coder", XML.format(r'{"a": "\ud800 \ud83d\ude00"}'), {"city": {"a": "\ufffd 😀"}}),
    ("pythonic", r'[weather(city="\ud800")]', {"city": "\ufffd"}),
    ("pythonic", "[weather(city=1e999)]", {"city": None}),
]
NAMES = [
    (r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>', "\ufffd"),
    (r'<tool_call>{"name": "\ud83d\ude00", "arguments": {}}</tool_call>', "😀"),
]
PARAMETERS = {"type": "object", "properties": {"city": {}}}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
RESPONSES_TOOL = {"type": "function", "name": "weather", "parameters": PARAMETERS}
HI = {"role": "user", "content": "Hi"}
ECHO = (
    "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


async def posted(app: Running, path: str, **fields: Any) -> Any:
    response = await app.http.post(path, json={"model": "echo", "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    assert '"error":{' not in response.text
    return response


@pytest.mark.parametrize(("parser", "text", "expected"), CALLS)
async def test_chats(parser: str, text: str, expected: dict[str, Any]) -> None:
    async with saying(text, chat_template=ECHO, tool_call_parser=parser) as app:
        whole = await chats.ask(app, tools=[CHAT_TOOL])
        streamed = await chats.stream(app, tools=[CHAT_TOOL])
        [call] = whole["message"]["tool_calls"]
        assert streamed["calls"] == [call["function"]]
        assert read_object(call["function"]["arguments"]) == expected
        messages = [HI, whole["message"]]
        await posted(app, "/v1/chat/completions", messages=messages, max_tokens=3)


@pytest.mark.parametrize(("parser", "text", "expected"), CALLS)
async def test_responses(parser: str, text: str, expected: dict[str, Any]) -> None:
    async with saying(text, chat_template=ECHO, tool_call_parser=parser) as app:
        fields: dict[str, Any] = {"input": [HI], "tools": [RESPONSES_TOOL]}
        whole = (await posted(app, "/v1/responses", **fields)).json()
        [call] = whole["output"]
        assert read_object(call["arguments"]) == expected
        told = (await posted(app, "/v1/responses", **fields, stream=True)).text
        last = json.loads(told.strip().rpartition("data: ")[2])
        assert last["response"]["output"][0]["arguments"] == call["arguments"]
        sent = {"input": [HI, call], "max_output_tokens": 3}
        await posted(app, "/v1/responses", **sent)
        await posted(app, "/v1/responses", input=[HI], previous_response_id=whole["id"])


@pytest.mark.parametrize(("parser", "text", "expected"), CALLS)
async def test_messages(parser: str, text: str, expected: dict[str, Any]) -> None:
    async with saying(text, chat_template=ECHO, tool_call_parser=parser) as app:
        tool = {"name": "weather", "input_schema": PARAMETERS}
        fields: dict[str, Any] = {"messages": [HI], "tools": [tool], "max_tokens": 200}
        whole = (await posted(app, "/v1/messages", **fields)).json()
        [block] = whole["content"]
        assert block["input"] == expected
        await posted(app, "/v1/messages", **fields, stream=True)
        answer = {"role": "assistant", "content": whole["content"]}
        await posted(app, "/v1/messages", **{**fields, "messages": [HI, answer]})


@pytest.mark.parametrize(("text", "expected"), NAMES)
async def test_names(text: str, expected: str) -> None:
    async with saying(text) as app:
        whole = await chats.ask(app)
        assert whole["message"]["tool_calls"][0]["function"]["name"] == expected
        assert (await chats.stream(app))["calls"][0]["name"] == expected
        fields = {"input": [HI], "tools": [RESPONSES_TOOL]}
        await posted(app, "/v1/responses", **fields, stream=True)
        assert (await posted(app, "/v1/responses", **fields)).json()["output"][0][
            "name"
        ] == expected


def test_an_object_that_is_too_deep_to_be_written_is_a_text() -> None:
    for depth in (100, 900, 950, 960, 970, 980, 990, 2000):
        text = '{"a":' * depth + "1" + "}" * depth
        message = encode(Message("m", "echo", [{"input": call_input(text)}], MessageUsage(1, 1, 0)))
        as_text = encode({"arguments": text})
        assert text.encode() in message or (depth > 100 and as_text in message)
