"""The official Anthropic client, unchanged, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel

from tests.e2e.serving import Server

if TYPE_CHECKING:
    import anthropic  # takes seconds: each test that needs it imports it

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
    import anthropic

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
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model="tiny", messages=HI, max_tokens=0)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", messages=HI, max_tokens=1)


class Place(BaseModel):
    kind: Literal["town", "village"]


def agent_fields() -> dict[str, Any]:
    """What a coding agent sends with every request."""
    cached = {"type": "ephemeral", "ttl": "1h"}
    return {
        "model": "tiny",
        "max_tokens": 24,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": cached}],
        "metadata": {"user_id": "user_1"},
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "high"},
        "context_management": {
            "edits": [
                {"type": "clear_thinking_20251015", "keep": "all"},
                {"type": "clear_tool_uses_20250919"},
            ]
        },
        "betas": ["context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
    }


def test_what_an_agent_sends(client: anthropic.Anthropic) -> None:
    tools: list[Any] = [
        {**TOOL, "name": "mcp__" + "a" * 100, "strict": True, "input_examples": [{"zip": "12345"}]},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"},
    ]
    image = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Go."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "redacted_thinking", "data": "EmwK"},
                {"type": "thinking", "thinking": "Look.", "signature": "ErUB"},
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "bash",
                    "input": {"command": "ls"},
                    "caller": {"type": "direct"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [
                        {"type": "text", "text": "a.png"},
                        {"type": "image", "source": image},
                    ],
                },
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    fields = {**agent_fields(), "messages": messages, "tools": tools}
    fields["tool_choice"] = {"type": "none"}
    whole = client.beta.messages.create(**fields, **GREEDY)
    assert whole.content
    assert whole.context_management.applied_edits == []
    assert whole._request_id
    found = {each["param"] for each in whole.model_extra["warnings"]}  # type: ignore[index]
    assert {"tools[1]", "messages[1].content[0]", "output_config.effort"} <= found
    assert "messages[2].content[0].content[1]" in found
    with client.beta.messages.stream(**fields, **GREEDY) as stream:
        final = stream.get_final_message()
    assert [b.type for b in final.content] == [b.type for b in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = {k: v for k, v in fields.items() if k not in ("max_tokens", "metadata")}
    count = client.beta.messages.count_tokens(**counted)
    usage = whole.usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_an_answer_goes_back_as_it_came(client: anthropic.Anthropic) -> None:
    """Whatever it is: here a call that is cut off in the middle of its arguments."""
    for limit in (1, 2, 5, 9, 200):
        fields: dict[str, Any] = {
            "model": "tiny",
            "max_tokens": limit,
            "tools": [TOOL],
            "tool_choice": {"type": "tool", "name": "find"},
        }
        whole = client.messages.create(messages=HI, **fields, **GREEDY)
        with client.messages.stream(messages=HI, **fields, **GREEDY) as stream:
            streamed = stream.get_final_message()
        assert [b.type for b in streamed.content] == [b.type for b in whole.content]
        messages = [*HI, {"role": "assistant", "content": whole.content}]
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "ok"}
            for block in whole.content
            if block.type == "tool_use"
        ]
        if whole.content:
            assert whole.content[0].input == streamed.content[0].input  # type: ignore[union-attr]
        then = [*messages, {"role": "user", "content": [*results, {"type": "text", "text": "?"}]}]
        assert client.messages.create(messages=then, **{**fields, "max_tokens": 3}).content


def test_a_parsed_answer(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 200, **GREEDY}
    parsed = client.messages.parse(output_format=Place, **fields)
    assert parsed.parsed_output in (Place(kind="town"), Place(kind="village"))
    with client.messages.stream(output_format=Place, **fields) as stream:
        assert stream.get_final_message().parsed_output == parsed.parsed_output


def test_a_tool_runner(client: anthropic.Anthropic) -> None:
    import anthropic

    asked: list[str] = []

    @anthropic.beta_tool
    def find(number: Literal["1", "2"]) -> str:
        """Find a place."""
        asked.append(number)
        return "A town."

    runner = client.beta.messages.tool_runner(
        model="tiny",
        max_tokens=200,
        tools=[find],
        tool_choice={"type": "tool", "name": "find"},
        messages=HI,
        max_iterations=2,
        **GREEDY,
    )
    first, *_ = runner
    if first.stop_reason == "tool_use":  # else in the middle of white space
        assert asked[0] in ("1", "2")


def test_models_and_errors_of_every_path(client: anthropic.Anthropic) -> None:
    import anthropic

    [model] = client.models.list()
    assert (model.id, model.type) == ("tiny", "model")
    assert client.models.retrieve("tiny").display_name == "tiny"
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.type == "not_found_error"
    assert caught.value.request_id
    with pytest.raises(anthropic.NotFoundError, match="no endpoint"):
        client.messages.batches.list()
