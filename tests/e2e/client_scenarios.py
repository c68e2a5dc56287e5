"""Scenarios of clients that share no process with tests: `LIBRARY URL EMBEDDING_URL`.

litellm leaves event loops open, and both take seconds to import.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story."}]
LONG: list[Any] = [{"role": "user", "content": "a story " * 2000}]
TEXTS = ["a cat", "a dog and a cat"]
SCHEMA: dict[str, Any] = {
    "title": "answer",
    "type": "object",
    "properties": {"a": {"enum": ["b"]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "find"}}

Scenario = Callable[[], None]


def litellm_scenarios(url: str, told: str, encoder_url: str) -> Iterator[Scenario]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network
    import litellm

    fields = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}
    chat = {**fields, "messages": MESSAGES, "max_tokens": 12, "temperature": 0, "max_retries": 0}

    def chats_and_streams() -> None:
        whole = litellm.completion(**chat)
        assert whole.choices[0].message.content == told
        assert whole.usage.completion_tokens > 0
        chunks = litellm.completion(**chat, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == told

    def a_tool_and_a_structure() -> None:
        long = chat | {"max_tokens": 200}
        called = litellm.completion(**long, tools=[TOOL], tool_choice=NAMED)
        [call] = called.choices[0].message.tool_calls
        assert call.function.name == "find"
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        choice = litellm.completion(**long, response_format=wanted).choices[0]
        if choice.finish_reason == "stop":  # else in the middle of white space
            assert json.loads(choice.message.content) == {"a": "b"}

    def responses() -> None:
        asked = {**fields, "input": MESSAGES[0]["content"], "max_output_tokens": 12}
        whole = litellm.responses(**asked, temperature=0)
        assert whole.output[0].content[0].text == told
        events = list(litellm.responses(**asked, temperature=0, stream=True))
        assert "".join(getattr(e, "delta", None) or "" for e in events) == told

    def embeddings() -> None:
        found = litellm.embedding(
            **fields | {"api_base": f"{encoder_url}/v1"}, input=TEXTS, encoding_format="float"
        )
        assert [entry["embedding"] for entry in found.data] == embedded(encoder_url)

    def typed_errors() -> None:
        with pytest.raises(litellm.BadRequestError):
            litellm.completion(**chat | {"max_tokens": 0})
        with pytest.raises(litellm.NotFoundError):
            litellm.completion(**chat | {"model": "openai/other"})
        with pytest.raises(litellm.ContextWindowExceededError):
            litellm.completion(**chat | {"messages": LONG})
        with pytest.raises(litellm.ContextWindowExceededError):
            litellm.responses(**fields, input=LONG)

    yield from (chats_and_streams, a_tool_and_a_structure, responses, embeddings, typed_errors)


def langchain_scenarios(url: str, told: str, encoder_url: str) -> Iterator[Scenario]:
    from langchain_core.exceptions import ContextOverflowError
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    fields: dict[str, Any] = {
        "model": "tiny",
        "base_url": f"{url}/v1",
        "api_key": "none",
        "temperature": 0,
        "max_retries": 0,
    }

    def chats_and_streams() -> None:
        for use_responses_api in (False, True):
            chat = ChatOpenAI(**fields, max_tokens=12, use_responses_api=use_responses_api)
            whole = chat.invoke(MESSAGES)
            assert whole.text == told
            assert whole.usage_metadata["output_tokens"] > 0
            assert "".join(chunk.text for chunk in chat.stream(MESSAGES)) == told

    def a_tool_and_a_structure() -> None:
        for use_responses_api in (False, True):
            chat = ChatOpenAI(**fields, max_tokens=200, use_responses_api=use_responses_api)
            found = chat.bind_tools([TOOL], tool_choice="find").invoke(MESSAGES)
            calls = [*found.tool_calls, *found.invalid_tool_calls]  # cut off in white space
            assert [call["name"] for call in calls] == ["find"]
            structured = chat.with_structured_output(SCHEMA, method="json_schema", include_raw=True)
            answer = structured.invoke(MESSAGES)
            assert answer["parsed"] == {"a": "b"} or answer["parsing_error"]

    def embeddings() -> None:
        model = OpenAIEmbeddings(
            model="tiny",
            base_url=f"{encoder_url}/v1",
            api_key="none",
            check_embedding_ctx_length=False,  # or it sends token ids of OpenAI's own vocabulary
        )
        assert model.embed_documents(TEXTS) == embedded(encoder_url)

    def typed_errors() -> None:
        with pytest.raises(openai.BadRequestError):
            ChatOpenAI(**fields, max_tokens=12, top_p=7).invoke(MESSAGES)
        with pytest.raises(openai.NotFoundError):
            ChatOpenAI(**fields | {"model": "other"}).invoke(MESSAGES)
        for use_responses_api in (False, True):
            chat = ChatOpenAI(**fields, max_tokens=12, use_responses_api=use_responses_api)
            with pytest.raises(ContextOverflowError):
                chat.invoke(LONG)

    yield from (chats_and_streams, a_tool_and_a_structure, embeddings, typed_errors)


LIBRARIES = {"litellm": litellm_scenarios, "langchain": langchain_scenarios}


def embedded(url: str) -> list[list[float]]:
    """The embeddings of `TEXTS`, asked for without any client."""
    answer = httpx.post(f"{url}/v1/embeddings", json={"input": TEXTS}, timeout=60).json()
    return [entry["embedding"] for entry in answer["data"]]


def main(library: str, url: str, encoder_url: str) -> None:
    """Run all scenarios of a library; prints the names of those that pass."""
    body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    told = answer["choices"][0]["message"]["content"]
    for scenario in LIBRARIES[library](url, told, encoder_url):
        scenario()
        print(scenario.__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
