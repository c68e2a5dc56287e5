"""litellm and langchain-openai, unchanged, against a real server."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import openai
import pytest

from tests.e2e.serving import Server

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network while it is imported
with warnings.catch_warnings():  # theirs to mend
    warnings.simplefilter("ignore")
    import litellm
    from langchain_openai import ChatOpenAI

pytestmark = pytest.mark.filterwarnings("ignore")

MESSAGES = [{"role": "user", "content": "Tell me a story."}]
SCHEMA: dict[str, Any] = {
    "title": "answer",
    "type": "object",
    "properties": {"a": {"enum": ["b"]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "find"}}


@pytest.fixture
def told(server: Server) -> str:
    """What the server answers to `MESSAGES`."""
    body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    return str(answer["choices"][0]["message"]["content"])


class TestLitellm:
    @pytest.fixture
    def fields(self, server: Server) -> dict[str, Any]:
        return {
            "model": "openai/tiny",
            "api_base": f"{server.url}/v1",
            "api_key": "none",
            "num_retries": 0,
            "max_retries": 0,
        }

    @pytest.fixture
    def chat(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}

    def test_chats_and_streams(self, chat: dict[str, Any], told: str) -> None:
        whole = litellm.completion(**chat)
        assert whole.choices[0].message.content == told
        assert whole.usage.completion_tokens > 0
        chunks = litellm.completion(**chat, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == told

    def test_a_tool_and_a_structure(self, chat: dict[str, Any]) -> None:
        chat["max_tokens"] = 200
        called = litellm.completion(**chat, tools=[TOOL], tool_choice=NAMED)
        [call] = called.choices[0].message.tool_calls
        assert call.function.name == "find"
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        choice = litellm.completion(**chat, response_format=wanted).choices[0]
        if choice.finish_reason == "stop":  # else in the middle of white space
            assert json.loads(choice.message.content) == {"a": "b"}

    def test_responses(self, fields: dict[str, Any], told: str) -> None:
        del fields["max_retries"]
        asked = {**fields, "input": MESSAGES[0]["content"], "max_output_tokens": 12}
        whole = litellm.responses(**asked, temperature=0)
        assert whole.output[0].content[0].text == told
        events = list(litellm.responses(**asked, temperature=0, stream=True))
        assert "".join(getattr(e, "delta", None) or "" for e in events) == told

    def test_errors_are_typed(self, chat: dict[str, Any]) -> None:
        with pytest.raises(litellm.BadRequestError):
            litellm.completion(**chat | {"max_tokens": 0})
        with pytest.raises(litellm.NotFoundError):
            litellm.completion(**chat | {"model": "openai/other"})


class TestLangchain:
    @pytest.fixture
    def fields(self, server: Server) -> dict[str, Any]:
        return {
            "model": "tiny",
            "base_url": f"{server.url}/v1",
            "api_key": "none",
            "temperature": 0,
            "max_retries": 0,
        }

    @pytest.mark.parametrize("api", [False, True])
    def test_chats_and_streams(self, fields: dict[str, Any], told: str, *, api: bool) -> None:
        chat = ChatOpenAI(**fields, max_tokens=12, use_responses_api=api)
        whole = chat.invoke(MESSAGES)
        assert whole.text == told
        assert whole.usage_metadata is not None
        assert whole.usage_metadata["output_tokens"] > 0
        assert "".join(chunk.text for chunk in chat.stream(MESSAGES)) == told

    @pytest.mark.parametrize("api", [False, True])
    def test_a_tool_and_a_structure(self, fields: dict[str, Any], *, api: bool) -> None:
        chat = ChatOpenAI(**fields, max_tokens=200, use_responses_api=api)
        found = chat.bind_tools([TOOL], tool_choice="find").invoke(MESSAGES)
        calls = [*found.tool_calls, *found.invalid_tool_calls]  # cut off in white space
        assert [call["name"] for call in calls] == ["find"]
        structured = chat.with_structured_output(SCHEMA, method="json_schema", include_raw=True)
        answer = structured.invoke(MESSAGES)
        assert answer["parsed"] == {"a": "b"} or answer["parsing_error"]

    def test_errors_are_typed(self, fields: dict[str, Any]) -> None:
        with pytest.raises(openai.BadRequestError):
            ChatOpenAI(**fields, max_tokens=12, top_p=7).invoke(MESSAGES)
        with pytest.raises(openai.NotFoundError):
            ChatOpenAI(**fields | {"model": "other"}).invoke(MESSAGES)
