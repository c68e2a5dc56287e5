"""llama-index: its OpenAI-like model and its agent of functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients.tasks import QUESTION, SYSTEM, Cat, add, get_weather


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    def model(**fields: Any) -> OpenAILike:
        return OpenAILike(
            model="tiny",
            api_base=f"{url}/v1",
            api_key="none",
            context_window=8192,
            max_retries=0,
            **{"is_chat_model": True, "is_function_calling_model": True, **fields},
        )

    def chat() -> None:
        asked = [ChatMessage(role="system", content=SYSTEM), ChatMessage(QUESTION)]
        model().chat(asked)
        for _ in model(max_tokens=16).stream_chat(asked):
            pass

    def completion() -> None:
        model(is_chat_model=False, max_tokens=16).complete("A cat")

    def structured() -> None:
        model().as_structured_llm(Cat).complete(QUESTION)

    def agent() -> None:
        tools = [FunctionTool.from_defaults(get_weather), FunctionTool.from_defaults(add)]

        async def run() -> None:
            await FunctionAgent(tools=tools, llm=model(), system_prompt=SYSTEM).run(QUESTION)  # type: ignore[arg-type]

        asyncio.run(run())

    yield from (chat, completion, structured, agent)
