"""smolagents: agents that call tools and agents that write code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

from tests.clients.tasks import QUESTION, add


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    def model() -> OpenAIServerModel:
        return OpenAIServerModel(model_id="tiny", api_base=f"{url}/v1", api_key="none")

    def calling() -> None:
        ToolCallingAgent([tool(add)], model(), max_steps=3, verbosity_level=0).run(QUESTION)

    def code() -> None:
        CodeAgent([tool(add)], model(), max_steps=2, verbosity_level=0).run(QUESTION)

    def streamed() -> None:
        agent = ToolCallingAgent(
            [tool(add)], model(), max_steps=3, verbosity_level=0, stream_outputs=True
        )
        agent.run(QUESTION)

    yield from (calling, code, streamed)
