"""langchain's models: OpenAI's chat and Responses, and Anthropic's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.clients.tasks import PIXEL, QUESTION, SYSTEM, Cat, add, get_weather


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    shared: dict[str, Any] = {"model": "tiny", "api_key": "none", "max_retries": 0}
    models: dict[str, Any] = {
        "chat": ChatOpenAI(base_url=f"{url}/v1", **shared),
        "responses": ChatOpenAI(base_url=f"{url}/v1", use_responses_api=True, **shared),
        "anthropic": ChatAnthropic(base_url=url, max_tokens=256, **shared),
    }
    for name, model in models.items():
        for scenario in _of_model(model):
            scenario.__name__ = f"{name}_{scenario.__name__}"
            yield scenario

    def embeddings() -> None:
        fields: dict[str, Any] = {**shared, "check_embedding_ctx_length": False}
        OpenAIEmbeddings(base_url=f"{url}/v1", **fields).embed_documents(["a cat", "a dog"])

    yield embeddings


def _of_model(model: Any) -> Iterator[Callable[[], object]]:
    asked = [SystemMessage(SYSTEM), HumanMessage(QUESTION)]

    def invoke() -> None:
        model.invoke(asked, stop=["END"])

    def stream() -> None:
        for _ in model.stream(asked):
            pass

    def tools() -> None:
        able = model.bind_tools([get_weather, add])
        first = able.invoke(asked)
        [call] = first.tool_calls
        result = ToolMessage("12 degrees", tool_call_id=call["id"], name=call["name"])
        again = able.invoke([*asked, first, result])
        able.invoke([*asked, first, result, again, HumanMessage("And in Rome?")])

    def image() -> None:
        able = model.bind_tools([get_weather])
        first = able.invoke(asked)
        [call] = first.tool_calls
        part = {"type": "image", "base64": PIXEL.partition(",")[2], "mime_type": "image/png"}
        result = ToolMessage([part], tool_call_id=call["id"], name=call["name"])
        able.invoke([*asked, first, result])

    def forced() -> None:
        model.bind_tools([get_weather], tool_choice="any").invoke(asked)
        model.bind_tools([get_weather], tool_choice="get_weather").invoke(asked)

    def structured() -> None:
        model.with_structured_output(Cat).invoke(asked)

    def parts() -> None:
        model.invoke([HumanMessage([{"type": "text", "text": QUESTION}])])

    yield from (invoke, stream, tools, image, forced, structured, parts)
