"""openai-agents' patterns through its own runner, in both of its APIs."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    AgentOutputSchema,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OutputGuardrailTripwireTriggered,
    Runner,
    SQLiteSession,
    function_tool,
    input_guardrail,
    output_guardrail,
    set_tracing_disabled,
)

from tests.clients.script import TEXT
from tests.clients.tasks import QUESTION, SYSTEM, Cat, Den, add, get_weather

URL = os.environ["QUIRE_URL"]
MODEL = os.environ["QUIRE_MODEL"]
WEATHER = "12 degrees celsius in cat"
"""What `get_weather` returns for the arguments that the script sends."""
LONG = "a cat " * 40_000

set_tracing_disabled(True)
_loop = asyncio.new_event_loop()
"""One for all tests: a model's client keeps its connections for the next run."""


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest) -> Any:
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    return request.param(model=MODEL, openai_client=client)


def agent(model: Any, **fields: Any) -> Agent:
    return Agent(**{"name": "Cat", "instructions": SYSTEM, "model": model, **fields})


def run(agent: Agent, question: Any = QUESTION, **fields: Any) -> Any:
    return _loop.run_until_complete(Runner.run(agent, question, max_turns=5, **fields))


def kinds(result: Any) -> list[str]:
    return [item.type for item in result.new_items]


def test_text(model: Any) -> None:
    result = run(agent(model))
    assert result.final_output == TEXT
    assert result.context_wrapper.usage.output_tokens > 0


def test_tool(model: Any) -> None:
    result = run(agent(model, tools=[function_tool(get_weather), function_tool(add)]))
    assert kinds(result) == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert result.new_items[1].output == WEATHER
    assert result.final_output == TEXT


@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_forced_tool(model: Any, choice: str) -> None:
    result = run(
        agent(
            model,
            tools=[function_tool(get_weather)],
            model_settings=ModelSettings(tool_choice=choice, parallel_tool_calls=False),
            tool_use_behavior="stop_on_first_tool",
        )
    )
    assert result.final_output == WEATHER


def test_a_tool_that_fails(model: Any) -> None:
    @function_tool(failure_error_function=lambda context, error: str(error))
    def broken() -> str:
        """Look for the cat."""
        raise ValueError("no cat")

    result = run(agent(model, tools=[broken]))
    assert "no cat" in result.new_items[1].output
    assert result.final_output == TEXT


def test_turns_end(model: Any) -> None:
    forced = ModelSettings(tool_choice="required")
    looping = agent(
        model, tools=[function_tool(add)], model_settings=forced, reset_tool_choice=False
    )
    with pytest.raises(MaxTurnsExceeded):
        run(looping)


def test_structured_output(model: Any) -> None:
    assert run(agent(model, output_type=Cat)).final_output == Cat(name="cat", age=3, mood="happy")


def test_structured_output_that_is_not_strict(model: Any) -> None:
    wanted = AgentOutputSchema(Den, strict_json_schema=False)
    assert isinstance(run(agent(model, output_type=wanted)).final_output, Den)


def test_structured_output_after_a_tool(model: Any) -> None:
    result = run(agent(model, tools=[function_tool(get_weather)], output_type=Cat))
    assert kinds(result)[:2] == ["tool_call_item", "tool_call_output_item"]
    assert isinstance(result.final_output, Cat)


def test_handoff(model: Any) -> None:
    other = agent(model, name="Dog", handoff_description="Knows dogs.")
    result = run(agent(model, handoffs=[other]))
    assert result.last_agent.name == "Dog"
    assert result.final_output == TEXT


def test_an_agent_as_a_tool(model: Any) -> None:
    other = agent(model, name="Dog").as_tool("ask_dog", "Ask the dog.")
    result = run(agent(model, tools=[other]))
    assert result.new_items[1].output == TEXT
    assert result.final_output == TEXT


def test_stream(model: Any) -> None:
    async def consume() -> tuple[str, list[str], Any]:
        result = Runner.run_streamed(agent(model, tools=[function_tool(get_weather)]), QUESTION)
        text, names = "", []
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type.endswith("text.delta"):
                text += event.data.delta
            if event.type == "run_item_stream_event":
                names.append(event.name)
        return text, names, result

    text, names, result = _loop.run_until_complete(consume())
    assert names == ["tool_called", "tool_output", "message_output_created"]
    assert text == result.final_output == TEXT


def test_stream_of_a_structure(model: Any) -> None:
    async def consume() -> Any:
        result = Runner.run_streamed(agent(model, output_type=Cat), QUESTION)
        async for _ in result.stream_events():
            pass
        return result.final_output

    assert isinstance(_loop.run_until_complete(consume()), Cat)


def test_session(model: Any) -> None:
    async def talk() -> tuple[int, Any]:
        session = SQLiteSession("one")
        able = agent(model, tools=[function_tool(get_weather)])
        await Runner.run(able, QUESTION, session=session)
        result = await Runner.run(able, "And then?", session=session)
        return len(await session.get_items()), result

    count, result = _loop.run_until_complete(talk())
    assert count == 6  # a question, a call, its result, an answer; a question, an answer
    assert result.final_output == TEXT


def test_a_conversation_goes_on(model: Any) -> None:
    first = run(agent(model, tools=[function_tool(get_weather)]))
    asked = [*first.to_input_list(), {"role": "user", "content": "And then?"}]
    assert run(agent(model), asked).final_output == TEXT


def test_guardrails(model: Any) -> None:
    judge = agent(model, name="Judge", output_type=Cat)

    @input_guardrail
    async def asked(context: Any, judged: Any, question: Any) -> GuardrailFunctionOutput:
        found = await Runner.run(judge, question, context=context.context)
        return GuardrailFunctionOutput(found.final_output, found.final_output.name == "cat")

    @output_guardrail
    async def answered(context: Any, judged: Any, answer: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(answer, TEXT in answer)

    with pytest.raises(InputGuardrailTripwireTriggered):
        run(agent(model, input_guardrails=[asked]))
    with pytest.raises(OutputGuardrailTripwireTriggered):
        run(agent(model, output_guardrails=[answered]))


def test_settings(model: Any) -> None:
    wanted = ModelSettings(
        temperature=0.5,
        top_p=0.9,
        max_tokens=64,
        truncation="auto",
        store=False,
        include_usage=True,
        metadata={"trace": "1"},
        verbosity="low",
        extra_body={"seed": 1},
    )
    assert run(agent(model, model_settings=wanted)).final_output == TEXT


def test_previous_response(model: Any) -> None:
    if isinstance(model, OpenAIChatCompletionsModel):
        pytest.skip("Chats are not stored.")
    first = run(agent(model))
    again = run(agent(model), "And then?", previous_response_id=first.last_response_id)
    assert again.final_output == TEXT


def test_overflow_falls_back(model: Any) -> None:
    """The runner has no fall-back of its own; programs look at the error's code."""
    with pytest.raises(openai.BadRequestError) as overflow:
        run(agent(model), LONG)
    assert overflow.value.code == "context_length_exceeded"
    assert run(agent(model), LONG[-100:]).final_output == TEXT
