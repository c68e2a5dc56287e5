"""openai-agents: runs with functions, handoffs and typed results, in both of its APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    ToolOutputImage,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from tests.clients.tasks import PIXEL, QUESTION, SYSTEM, Cat, add, get_weather


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    set_tracing_disabled(True)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        for scenario in _of_model(kind, url):
            scenario.__name__ = f"{kind.__name__}_{scenario.__name__}"
            yield scenario


def _of_model(kind: Any, url: str) -> Iterator[Callable[[], object]]:
    def agent(**fields: Any) -> Agent:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        model = kind(model="tiny", openai_client=client)
        return Agent("Cat", instructions=SYSTEM, model=model, **fields)

    def run(agent: Agent, question: Any = QUESTION) -> Any:
        return asyncio.run(Runner.run(agent, question, max_turns=4))

    tools = [function_tool(get_weather), function_tool(add)]

    def plain() -> None:
        first = run(agent())
        run(agent(), [*first.to_input_list(), {"role": "user", "content": "And then?"}])

    def functions() -> None:
        run(agent(tools=tools))

    def settings() -> None:
        wanted = ModelSettings(
            temperature=0.5,
            top_p=0.9,
            max_tokens=64,
            parallel_tool_calls=True,
            truncation="auto",
            store=False,
            include_usage=True,
            metadata={"trace": "1"},
            verbosity="low",
        )
        run(agent(model_settings=wanted))

    def streamed() -> None:
        async def consume() -> None:
            async for _ in Runner.run_streamed(agent(tools=tools), QUESTION).stream_events():
                pass

        asyncio.run(consume())

    def typed() -> None:
        run(agent(output_type=Cat))

    def image() -> None:
        def look() -> ToolOutputImage:
            """Look at the cat."""
            return ToolOutputImage(image_url=PIXEL)

        run(agent(tools=[function_tool(look)]))

    def handoff() -> None:
        run(agent(handoffs=[agent(handoff_description="Knows dogs.")]))

    yield from (plain, functions, settings, streamed, typed, image, handoff)
