"""Anthropic's official package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anthropic

from tests.clients.tasks import QUESTION, SYSTEM, WEATHER, Cat

CACHED: Any = {"type": "ephemeral"}
TOOL: Any = {"name": "get_weather", "description": "The weather.", "input_schema": WEATHER}


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    asked: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": QUESTION}],
    }

    def plain() -> None:
        client.messages.create(
            **asked,
            system=[{"type": "text", "text": SYSTEM, "cache_control": CACHED}],
            metadata={"user_id": "someone"},
            service_tier="auto",
            stop_sequences=["END"],
            extra_body={"temperature": 0.5, "top_k": 10},
        )

    def stream() -> None:
        with client.messages.stream(**asked) as events:
            events.get_final_message()

    def thinking() -> None:
        thoughts: list[Any] = [
            {"type": "enabled", "budget_tokens": 1024},
            {"type": "adaptive"},
            {"type": "disabled"},
        ]
        for kind in thoughts:
            client.messages.create(**{**asked, "max_tokens": 2048}, thinking=kind)

    def effort_and_format() -> None:
        client.messages.create(**asked, output_config={"effort": "low"})
        client.messages.parse(**asked, output_format=Cat)

    def tools() -> None:
        cached = {**TOOL, "cache_control": CACHED}
        first = client.messages.create(**asked, tools=[cached], tool_choice={"type": "auto"})
        [call] = [block for block in first.content if block.type == "tool_use"]
        result: Any = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": [{"type": "text", "text": "12 degrees"}],
            "is_error": False,
            "cache_control": CACHED,
        }
        messages = [
            *asked["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
        ]
        client.messages.create(**{**asked, "messages": messages}, tools=[TOOL])

    def tool_fields() -> None:
        client.messages.create(
            **asked,
            tools=[
                {
                    **TOOL,
                    "strict": True,
                    "input_examples": [{"city": "Oslo"}],
                    "defer_loading": False,
                    "allowed_callers": ["direct"],
                }
            ],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        )

    def server_tools() -> None:
        search: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
        client.messages.create(**asked, tools=[search, TOOL])

    def earlier_thoughts() -> None:
        blocks: list[Any] = [
            {"type": "thinking", "thinking": "A mat?", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "b3BhcXVl"},
            {"type": "text", "text": "On the mat.", "citations": None},
        ]
        messages = [
            *asked["messages"],
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": "Sure?"},
        ]
        client.messages.create(**{**asked, "messages": messages})

    def context_management() -> None:
        edits: Any = {"edits": [{"type": "clear_tool_uses_20250919"}]}
        client.beta.messages.create(
            **asked, context_management=edits, betas=["context-management-2025-06-27"]
        )

    def counts() -> None:
        fields = {name: asked[name] for name in ("model", "messages")}
        client.messages.count_tokens(**fields, tools=[TOOL], system=SYSTEM)

    def runner() -> None:
        @anthropic.beta_tool
        def get_weather(city: str) -> str:
            """Tell the weather of a city.

            Args:
                city: the city's name.
            """
            return f"12 degrees in {city}"

        client.beta.messages.tool_runner(**asked, tools=[get_weather]).until_done()

    yield from (plain, stream, thinking, effort_and_format, tools, tool_fields, server_tools)
    yield from (earlier_thoughts, context_management, counts, runner)
