"""What a capable model writes reaches the official clients, in all three APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.capable import LOG, capable
from tests.clients.script import TEXT
from tests.clients.tasks import CHAT, QUESTION, WEATHER
from tests.e2e.serving import Server

TOOL: Any = {"name": "get_weather", "parameters": WEATHER}
ARGUMENTS = {"city": "cat"}
SCHEMA: Any = {"name": "age", "schema": {"type": "object", "properties": {"n": {"const": 3}}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with capable(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return server.openai_client()


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_chat(client: openai.OpenAI, choice: Any) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": CHAT}
    tools: Any = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": choice}
    message = client.chat.completions.create(**fields, **tools).choices[0].message
    [call] = message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
    with client.chat.completions.stream(**fields, **tools) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert json.loads(streamed.function.arguments) == ARGUMENTS
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    fields["messages"] = [*CHAT, message, result]
    again = client.chat.completions.create(**fields, tools=tools["tools"])
    assert again.choices[0].message.content == TEXT


def test_json(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": CHAT}
    wanted: Any = {"type": "json_schema", "json_schema": SCHEMA}
    found = client.chat.completions.create(**fields, response_format=wanted)
    assert json.loads(found.choices[0].message.content or "") == {"n": 3}


def test_requests_are_logged(server: Server, client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": CHAT}
    answer = client.chat.completions.create(**fields, extra_headers={"openai-beta": "a"})
    row = json.loads((server.log.parent / LOG).read_text().splitlines()[-1])
    assert (row["method"], row["path"]) == ("POST", "/v1/chat/completions")
    assert (row["headers"], row["body"]) == ({"openai-beta": "a"}, fields)
    assert row["answered_as"] == answer.id


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "name": "get_weather"}]
)
def test_responses(client: openai.OpenAI, choice: Any) -> None:
    fields: dict[str, Any] = {"model": "tiny", "tools": [{"type": "function", **TOOL}]}
    first = client.responses.create(input=QUESTION, tool_choice=choice, **fields)
    [call] = first.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == ARGUMENTS
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    more: dict[str, Any] = {"input": [result], "previous_response_id": first.id}
    assert client.responses.create(**more, **fields).output_text == TEXT
    with client.responses.stream(**more, **fields) as stream:
        assert stream.get_final_response().output_text == TEXT


@pytest.mark.parametrize("choice", ["auto", "any", "tool"])
def test_messages(server: Server, choice: str) -> None:
    import anthropic  # takes seconds

    named: Any = {"type": choice, **({"name": "get_weather"} if choice == "tool" else {})}
    fields: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 256,
        "tools": [{"name": "get_weather", "input_schema": WEATHER}],
    }
    asked: Any = {"role": "user", "content": QUESTION}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        first = client.messages.create(messages=[asked], tool_choice=named, **fields)
        [call] = first.content
        assert call.type == "tool_use"
        assert call.input == ARGUMENTS
        block = {"type": "tool_result", "tool_use_id": call.id, "content": "12"}
        told: Any = [asked, {"role": "assistant", "content": first.content}]
        told.append({"role": "user", "content": [block]})
        with client.messages.stream(messages=told, **fields) as stream:
            assert stream.get_final_text() == TEXT
