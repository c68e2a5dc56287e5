"""pydantic-ai's agents over its three models for these APIs."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    ModelHTTPError,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    TextOutput,
    ToolOutput,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.script import TEXT
from tests.clients.tasks import QUESTION, SYSTEM, Cat, Den, add, get_weather

URL = os.environ["QUIRE_URL"]
MODEL = os.environ["QUIRE_MODEL"]
LONG = "a cat " * 40_000
TestModel.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture(params=["chat", "responses", "messages"])
def model(request: pytest.FixtureRequest) -> Any:
    if request.param == "messages":
        anthropic = AnthropicProvider(base_url=URL, api_key="none")
        return AnthropicModel(MODEL, provider=anthropic)
    kind = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
    return kind(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="none"))


def agent(model: Any, **fields: Any) -> Any:
    return Agent(model, instructions=SYSTEM, **fields)


def called(result: Any) -> list[str]:
    answers = [each for each in result.all_messages() if isinstance(each, ModelResponse)]
    return [call.tool_name for each in answers for call in each.tool_calls]


def test_text(model: Any) -> None:
    result = agent(model).run_sync(QUESTION)
    assert result.output == TEXT
    assert result.usage.output_tokens > 0
    assert result.response.finish_reason == "stop"


def test_a_conversation_goes_on(model: Any) -> None:
    able = agent(model, tools=[get_weather])
    first = able.run_sync(QUESTION)
    again = able.run_sync("And then?", message_history=first.all_messages())
    assert again.output == TEXT


def test_tools(model: Any) -> None:
    result = agent(model, tools=[get_weather, add]).run_sync(QUESTION)
    assert called(result) == ["get_weather"]
    assert result.output == TEXT


def test_a_tool_that_wants_another_try(model: Any) -> None:
    tries = []

    def look(context: RunContext, place: str) -> str:
        """Look for the cat."""
        tries.append(place)
        raise ModelRetry("Not there.")

    assert agent(model, tools=[look]).run_sync(QUESTION).output == TEXT
    assert tries == ["cat"]


@pytest.mark.parametrize("kind", [ToolOutput, NativeOutput, PromptedOutput])
def test_typed(model: Any, kind: Any) -> None:
    if kind is NativeOutput and isinstance(model, AnthropicModel):
        pytest.skip("The package asks Anthropic's own models alone for it.")
    cat = agent(model, output_type=kind(Cat)).run_sync(QUESTION).output
    assert (cat.name, cat.mood) == ("cat", "happy")


def test_typed_with_nesting(model: Any) -> None:
    [cat] = agent(model, output_type=Den).run_sync(QUESTION).output.cats
    assert cat.name == "cat"


def test_typed_by_one_of_several(model: Any) -> None:
    assert isinstance(agent(model, output_type=[Cat, Den]).run_sync(QUESTION).output, Cat | Den)


def test_typed_after_a_tool(model: Any) -> None:
    result = agent(model, tools=[get_weather], output_type=Cat).run_sync(QUESTION)
    assert called(result) == ["get_weather", "final_result"]
    assert isinstance(result.output, Cat)


def test_typed_by_a_function(model: Any) -> None:
    def shout(text: str) -> str:
        return text.upper()

    assert agent(model, output_type=TextOutput(shout)).run_sync(QUESTION).output == TEXT.upper()


def test_an_output_that_is_not_valid(model: Any) -> None:
    tries = []
    able = agent(model, output_type=Cat)

    @able.output_validator
    def check(cat: Cat) -> Cat:
        tries.append(cat)
        if len(tries) == 1:
            raise ModelRetry("Another cat, please.")
        return cat

    assert isinstance(able.run_sync(QUESTION).output, Cat)
    assert len(tries) == 2


def test_stream(model: Any) -> None:
    async def consume() -> tuple[str, Any]:
        async with agent(model, tools=[get_weather]).run_stream(QUESTION) as result:
            pieces = [each async for each in result.stream_text(delta=True, debounce_by=None)]
        return "".join(pieces), result

    text, result = asyncio.run(consume())
    assert text == TEXT
    assert called(result) == ["get_weather"]
    assert result.usage.output_tokens > 0


def test_stream_of_a_type(model: Any) -> None:
    async def consume() -> Any:
        async with agent(model, output_type=Cat).run_stream(QUESTION) as result:
            async for _ in result.stream_output(debounce_by=None):
                pass
            return await result.get_output()

    assert isinstance(asyncio.run(consume()), Cat)


def test_events(model: Any) -> None:
    async def consume() -> list[str]:
        names = []
        async with agent(model, tools=[get_weather]).iter(QUESTION) as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as events:
                        names += [event.event_kind async for event in events]
        return names

    found = asyncio.run(consume())
    assert {"part_start", "part_delta"} <= {*found}


def test_settings(model: Any) -> None:
    wanted = {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 64,
        "parallel_tool_calls": False,
        "stop_sequences": ["END"],
        "timeout": 30,
    }
    result = agent(model, tools=[add]).run_sync(QUESTION, model_settings=wanted)
    assert result.output == TEXT


def test_overflow_falls_back(model: Any) -> None:
    with pytest.raises(ModelHTTPError) as overflow:
        agent(model).run_sync(LONG)
    assert overflow.value.status_code == 400
    both = FallbackModel(model, TestModel(custom_output_text="short"))
    assert agent(both).run_sync(LONG).output == "short"
