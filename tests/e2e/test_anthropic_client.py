"""The official Anthropic client, unchanged, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.e2e.serving import Server

HI: list[Any] = [{"role": "user", "content": "Tell me a story."}]
TOOL: Any = {
    "name": "find",
    "description": "Find a place.",
    "input_schema": {
        "type": "object",
        "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
        "required": ["zip"],
        "additionalProperties": False,
    },
}
GREEDY: Any = {"extra_body": {"temperature": 0}}
"""Not every version of the client has a word for it."""


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_messages_whole_and_streamed(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 12, **GREEDY}
    whole = client.messages.create(**fields)
    assert whole.stop_reason in ("max_tokens", "end_turn")
    assert whole.content[0].type == "text"
    with client.messages.stream(**fields) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert final.content[0].type == "text"
    assert final.usage.output_tokens == whole.usage.output_tokens
    count = client.messages.count_tokens(model="tiny", messages=HI).input_tokens
    assert count == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_a_tool(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="tiny",
        messages=HI,
        max_tokens=300,
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "find"},
        **GREEDY,
    )
    [block] = message.content
    assert block.type == "tool_use"
    assert block.name == "find"
    if message.stop_reason == "tool_use":  # else in the middle of white space
        assert len(json.loads(json.dumps(block.input))["zip"]) == 5


def test_errors_are_typed(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model="tiny", messages=HI, max_tokens=0)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", messages=HI, max_tokens=1)
