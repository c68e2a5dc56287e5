"""Anthropic's Messages API over the real front end and a model that says what it is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.core.errors import EngineRestartingError
from quire.frontend.async_llm import AsyncLLM
from tests.unit.server.fake_engine import MODEL, Running, running
from tests.unit.server.openai.test_tools import CALL, saying

TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]


async def post(app: Running, path: str = "/v1/messages", **fields: Any) -> Any:
    body = {"model": MODEL, "messages": HI, "max_tokens": 200, **fields}
    return await app.http.post(path, json={k: v for k, v in body.items() if v is not None})


async def ask(app: Running, **fields: Any) -> dict[str, Any]:
    response = await post(app, **fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def stream(app: Running, **fields: Any) -> dict[str, Any]:
    """The message that the events tell of."""
    response = await post(app, stream=True, **fields)
    assert response.status_code == 200, response.text
    message: dict[str, Any] = {}
    written: list[str] = []
    kinds = []
    for part in response.text.strip().split("\n\n"):
        first, second = part.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        kinds.append(event["type"])
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                written.append("")
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                name = delta["type"].removesuffix("_delta")
                if name == "input_json":
                    written[-1] += delta["partial_json"]
                    continue
                block[name] += delta[name]
            case "content_block_stop":
                if written[event["index"]]:
                    message["content"][event["index"]]["input"] = json.loads(written[-1])
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    del message["id"]
    for block in message["content"]:
        block.pop("id", None)
    return message


async def test_a_message() -> None:
    async with saying("Hello.") as app:
        message = await ask(app, system="Be brief.")
        assert message["id"].startswith("msg_")
        assert message["type"] == "message"
        assert message["role"] == "assistant"
        assert message["content"] == [{"type": "text", "text": "Hello."}]
        assert message["stop_reason"] == "end_turn"
        assert message["usage"]["input_tokens"] == len("system:Be brief.user:Hi")
        assert message["usage"]["output_tokens"] == len("Hello.") + 1
        short = await ask(app, max_tokens=3)
        assert (short["content"][0]["text"], short["stop_reason"]) == ("Hel", "max_tokens")
        stopped = await ask(app, stop_sequences=["lo"])
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "lo")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Hello.", {}),
        ("Let me see. " + CALL, {"tools": [TOOL]}),
        (CALL, {"tools": [TOOL], "tool_choice": {"type": "auto"}}),
        ("<think>Hm.</think>Yes. " + CALL, {"tools": [TOOL]}),
    ],
)
async def test_streamed_and_whole_are_the_same(text: str, fields: dict[str, Any]) -> None:
    template = (
        "{% if tools %}<tool_call>{% endif %}{{ messages[0].content }}{% if 0 %}<think>{% endif %}"
    )
    async with saying(text, chat_template=template) as app:
        whole, streamed = await ask(app, **fields), await stream(app, **fields)
        for usage in (whole["usage"], streamed["usage"]):
            del usage["input_tokens"], usage["cache_read_input_tokens"]  # the second is cached
        assert without_ids(streamed) == without_ids(whole)
        if fields:
            assert whole["stop_reason"] == "tool_use"
            last = whole["content"][-1]
            assert last == {"type": "tool_use", "name": "weather", "input": {"city": "Paris"}}
        if "think" in text:
            assert whole["content"][0].pop("signature")
            # The marks and what is between them, a character each.
            thinking = whole["usage"]["output_tokens_details"]["thinking_tokens"]
            assert 0 < thinking <= len("<think>Hm.</think>")
            assert whole["content"][0] == {"type": "thinking", "thinking": "Hm."}


async def test_blocks_reach_the_template() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "sunny"},
                {"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    async with saying("ok") as app:
        response = await post(app, "/v1/messages/count_tokens", messages=messages, max_tokens=None)
        expected = "user:Hiassistant:Paristool:sunnyuser:So?"
        assert response.json() == {"input_tokens": len(expected)}


async def test_an_answer_that_is_begun(app: Running) -> None:
    begun = [*HI, {"role": "assistant", "content": "ab"}]
    assert (await ask(app, messages=begun, max_tokens=3))["content"][0]["text"] == "cde"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n is not supported"),
        ({"max_token": 2}, "did you mean max_tokens"),
        ({"thread": {"type": "create"}}, "send all messages"),
        ({"compaction": {"type": "summarize"}}, "compaction is not supported"),
        ({"tool_choice": {"type": "any"}}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [{"name": "a", "type": "function"}]}, "OpenAI"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        (
            {"tools": [{"type": "web_search_20250305"}], "tool_choice": {"type": "any"}},
            "tool_choice",
        ),
        ({"thinking": {"type": "between_tools"}}, "adaptive or disabled or enabled"),
        ({"output_format": {"type": "json_schema", "schema": {"type": 1}}}, "output_config.format"),
        (
            {
                "tools": [{"type": "web_search_20250305"}, {**TOOL, "input_schema": {"type": 1}}],
                "tool_choice": {"type": "tool", "name": "weather"},
            },
            "tools[1].input_schema",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].source",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
            "'hologram'; supported are text",
        ),
        ({"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}, "type is missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a"}]}]},
            "messages of the role assistant",
        ),
    ],
)
async def test_errors_have_anthropics_shape(fields: dict[str, Any], word: str) -> None:
    async with saying("ok") as app:
        response = await post(app, **fields)
        assert response.status_code == 400
        body = response.json()
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
        assert word in body["error"]["message"]
        assert (await post(app, model="other")).json()["error"]["type"] == "not_found_error"


async def test_the_key_may_come_as_theirs() -> None:
    async with running(api_keys=["secret"]) as app:
        assert (await post(app)).status_code == 401
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
            app.http.headers.update(headers)
            assert (await post(app, max_tokens=3)).status_code == 200
            for name in headers:
                del app.http.headers[name]
        app.http.headers["x-api-key"] = "wrong"
        assert (await post(app)).status_code == 401


async def test_a_client_is_told_when_to_come_back(
    monkeypatch: pytest.MonkeyPatch, app: Running
) -> None:
    monkeypatch.setattr(AsyncLLM, "error", EngineRestartingError("The core was lost."))
    response = await post(app)
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "overloaded_error"
    assert int(response.headers["retry-after"]) > 0
