"""pydantic-ai: agents with functions and typed results over three APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from pydantic_ai import Agent, BinaryContent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.tasks import PIXEL, QUESTION, SYSTEM, Cat, add, get_weather


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    def chat() -> Any:
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
        return OpenAIChatModel("tiny", provider=provider)

    def responses() -> Any:
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
        return OpenAIResponsesModel("tiny", provider=provider)

    def messages() -> Any:
        provider = AnthropicProvider(base_url=url, api_key="none")
        return AnthropicModel("tiny", provider=provider)

    for make in (chat, responses, messages):
        for scenario in _of_model(make):
            scenario.__name__ = f"{make.__name__}_{scenario.__name__}"
            yield scenario


def _of_model(make: Callable[[], Any]) -> Iterator[Callable[[], object]]:
    def agent(**fields: Any) -> Any:
        return Agent(make(), instructions=SYSTEM, **fields)

    def plain() -> None:
        first = agent().run_sync(QUESTION)
        agent().run_sync("And then?", message_history=first.all_messages())

    def functions() -> None:
        agent(tools=[get_weather, add]).run_sync(QUESTION)

    def typed_by_tool() -> None:
        agent(output_type=ToolOutput(Cat)).run_sync(QUESTION)

    def typed_natively() -> None:
        agent(output_type=NativeOutput(Cat)).run_sync(QUESTION)

    def typed_by_prompt() -> None:
        agent(output_type=PromptedOutput(Cat)).run_sync(QUESTION)

    def streamed() -> None:
        async def consume() -> None:
            async with agent(tools=[get_weather]).run_stream(QUESTION) as result:
                async for _ in result.stream_text():
                    pass

        asyncio.run(consume())

    def image() -> None:
        def look() -> BinaryContent:
            """Look at the cat."""
            return BinaryContent.from_data_uri(PIXEL)

        agent(tools=[look]).run_sync(QUESTION)

    def settings() -> None:
        wanted: Any = {"temperature": 0.5, "max_tokens": 64, "parallel_tool_calls": False}
        agent(tools=[add]).run_sync(QUESTION, model_settings=wanted)

    yield from (plain, functions, typed_by_tool, typed_by_prompt, streamed, settings)
    if make.__name__ != "chat":  # there the image goes into a message of the user
        yield image
    if make.__name__ != "messages":  # the package asks Anthropic's own models alone for it
        yield typed_natively
