"""Every format through the official client: whole and streamed, from the template's sign on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.server.tools.table import TOOL_PARSERS
from tests.unit.server.openai.test_tools import saying
from tests.unit.server.tools.written import written_call

PARAMETERS = {"type": "object", "properties": {"days": {"type": "integer"}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}},
]
THREE_DAYS = {name: written_call(name, "f", {"days": 3}) for name in TOOL_PARSERS}
ASKED: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("name", sorted(TOOL_PARSERS.keys() - {"pythonic"}))  # has no text
async def test_calls_come_whole_and_streamed_alike(name: str) -> None:
    template = TOOL_PARSERS[name].signs[0] + "{{ messages[0].content }}"
    async with saying(f"I look.\n{THREE_DAYS[name]}", chat_template=template) as app:
        fields = {**ASKED, "tools": TOOLS, "temperature": 0, "max_tokens": 210}
        whole = (await app.openai_client.chat.completions.create(**fields)).choices[0]
        calls = whole.message.tool_calls
        assert whole.finish_reason == "tool_calls"
        assert [(c.function.name, json.loads(c.function.arguments)) for c in calls or ()] == [
            ("f", {"days": 3})
        ]
        content, streamed = "", []
        async for chunk in await app.openai_client.chat.completions.create(**fields, stream=True):
            delta = chunk.choices[0].delta
            content += delta.content or ""
            for piece in delta.tool_calls or ():
                if piece.function and piece.function.name:
                    streamed.append([piece.function.name, ""])
                streamed[piece.index][1] += (piece.function and piece.function.arguments) or ""
        assert content == whole.message.content == "I look."
        assert streamed == [[c.function.name, c.function.arguments] for c in calls or ()]


ANSWER = {"a": {"name": "f", "parameters": {"days": 3}}, "b": "<tool_call>[f(days=3)]"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "object"}, "b": {"type": "string"}}}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
BESIDE = ("llama3_json", "qwen3_coder", "gemma4", "pythonic", "openai")


@pytest.mark.parametrize("name", BESIDE)
async def test_the_answer_is_json_or_a_call(name: str) -> None:
    template = TOOL_PARSERS[name].signs[0] + "{{ messages[0].content }}"
    fields = {**ASKED, "tools": TOOLS, "response_format": FORMAT, "max_tokens": 210}
    final = "<|channel|>final<|message|>" if name == "openai" else ""
    for text in (THREE_DAYS[name], final + json.dumps(ANSWER)):
        async with saying(text, chat_template=template) as app:
            message = (await app.openai_client.chat.completions.create(**fields)).choices[0].message
            content, names = "", []
            async for chunk in await app.openai_client.chat.completions.create(
                **fields, stream=True
            ):
                delta = chunk.choices[0].delta
                content += delta.content or ""
                names += [c.function.name for c in delta.tool_calls or () if c.function]
        if text == THREE_DAYS[name]:
            [call] = message.tool_calls or []
            assert json.loads(call.function.arguments) == {"days": 3}
            assert names[0] == "f"
            assert not content
        else:
            assert message.tool_calls is None
            assert json.loads(message.content or "") == json.loads(content) == ANSWER


async def test_json_that_may_be_a_call_is_refused() -> None:
    template = TOOL_PARSERS["llama3_json"].signs[0] + "{{ messages[0].content }}"
    both = {"type": "object", "properties": {"name": {}, "parameters": {}}}
    async with saying("{}", chat_template=template) as app:
        for schema in (both, {"type": "object"}, {"type": "array"}, {"anyOf": [both]}):
            wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            answer = await app.chat(tools=TOOLS, response_format=wanted)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "response_format"


async def test_numbered_ids_go_on_where_the_conversation_is() -> None:
    template = TOOL_PARSERS["kimi_k2"].signs[0] + "{{ messages[0].content }}"
    text = '[{"name": "f", "parameters": {}}]'
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": ""}}
    messages: list[Any] = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "done"},
    ]
    async with saying(text, chat_template=template) as app:
        answer = await app.openai_client.chat.completions.create(
            model="echo", messages=messages, tools=TOOLS, tool_choice="required", max_tokens=99
        )
        [made] = answer.choices[0].message.tool_calls or []
        assert made.id == "functions.f:1"


async def test_the_models_own_ids_reach_every_api() -> None:
    template = TOOL_PARSERS["kimi_k2"].signs[0] + "{{ messages[0].content }}"
    async with saying(THREE_DAYS["kimi_k2"], chat_template=template) as app:
        schema = {"name": "f", "input_schema": PARAMETERS}
        body = {**ASKED, "tools": [schema], "max_tokens": 210}
        message = (await app.http.post("/v1/messages", json=body)).json()
        assert [each["id"] for each in message["content"] if each["type"] == "tool_use"] == [
            "functions.f:0"
        ]
        function: Any = {"type": "function", "strict": False, **TOOLS[0]["function"]}
        answer = await app.openai_client.responses.create(
            model="echo", input="Hi", tools=[function]
        )
        assert [item.call_id for item in answer.output if item.type == "function_call"] == [
            "functions.f:0"
        ]
