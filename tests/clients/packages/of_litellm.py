"""litellm, with parameters that it translates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from tests.clients.tasks import CHAT, QUESTION, WEATHER, Cat

TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network
    import litellm

    for provider in ("openai", "hosted_vllm"):
        yield from _of_provider(litellm, provider, url)

    def messages() -> None:
        litellm.completion(
            model="anthropic/tiny",
            api_base=url,
            api_key="none",
            messages=CHAT,
            max_tokens=32,
            tools=[TOOL],
        )

    yield messages


def _of_provider(litellm: Any, provider: str, url: str) -> Iterator[Callable[[], object]]:
    fields: dict[str, Any] = {
        "model": f"{provider}/tiny",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "num_retries": 0,
    }

    def chat() -> None:
        litellm.completion(**fields, messages=CHAT, max_tokens=16, user="someone", seed=1)
        for _ in litellm.completion(**fields, messages=CHAT, max_tokens=16, stream=True):
            pass

    def tools() -> None:
        first = litellm.completion(**fields, messages=CHAT, tools=[TOOL], tool_choice="auto")
        answer = first.choices[0].message
        [call] = answer.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "12"}
        litellm.completion(**fields, messages=[*CHAT, answer, result], tools=[TOOL])

    def structured() -> None:
        litellm.completion(**fields, messages=CHAT, response_format=Cat)

    def reasoning() -> None:
        litellm.completion(**fields, messages=CHAT, reasoning_effort="low", max_tokens=16)

    def responses() -> None:
        litellm.responses(**fields, input=QUESTION, max_output_tokens=16)

    for scenario in (chat, tools, structured, reasoning, responses):
        scenario.__name__ = f"{provider}_{scenario.__name__}"
        yield scenario
