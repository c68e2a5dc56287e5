"""Tools and reasoning in a chat, over the real front end and a model that says what it is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput
from tests.unit.engine.echo import EOS
from tests.unit.server.fake_engine import Running, running
from tests.unit.server.sse import events

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for message in messages %}"
    "{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls %}{{ call.function.arguments.city }}{% endfor %}"
    "{% endfor %}{% if think %}<think>\n{% endif %}"
)


@asynccontextmanager
async def saying(text: str, **options: Any) -> AsyncIterator[Running]:
    """An application whose model says `text`, whatever it is asked."""
    options.setdefault("chat_template", TEMPLATE)
    async with running(**options) as app:
        executor = app.core.executor
        usual = executor.execute
        script = [*text.encode(), EOS]
        prompts: dict[str, int] = {}

        def execute(batch: SchedulerOutput) -> ModelOutput:
            for new in batch.new_sequences:
                prompts[new.request_id] = new.num_prompt_tokens
            output = usual(batch)
            for i, name in enumerate(batch.request_ids):
                tokens = executor.tokens[name]  # type: ignore[attr-defined]
                if output.sampled_token_ids[i, 0] >= 0:
                    tokens[-1] = script[len(tokens) - 1 - prompts[name]]
                    output.sampled_token_ids[i, 0] = tokens[-1]
                    for found in output.logprobs.get(name, ()):
                        found.token_ids[:2] = tokens[-1:] * 2
            return output

        executor.execute = execute  # type: ignore[method-assign]
        yield app


async def ask(app: Running, **fields: Any) -> dict[str, Any]:
    """The one choice of an answer."""
    response = await app.chat(max_tokens=None, **{"tools": [TOOL], **fields})
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    return dict(choice)


async def stream(app: Running, **fields: Any) -> dict[str, Any]:
    """The same choice, put together from its events."""
    fields = {"tools": [TOOL], **fields, "stream": True}
    response = await app.chat(max_tokens=None, **fields)
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    reason = None
    for chunk in events(response.text):
        [choice] = chunk["choices"]
        delta, reason = choice["delta"], choice["finish_reason"] or reason
        for name in ("content", "reasoning", "reasoning_content"):
            if delta.get(name):
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(calls)
                assert call["type"] == "function"
                calls.append({"name": call["function"]["name"], "arguments": ""})
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return {"message": message, "calls": calls, "finish_reason": reason}


def calls_of(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for call in choice["message"].get("tool_calls", [])]


async def test_a_call() -> None:
    async with saying("Let me see. " + CALL) as app:
        choice = await ask(app)
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Let me see."
        [call] = choice["message"]["tool_calls"]
        assert call["type"] == "function"
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
        streamed = await stream(app)
        assert streamed["calls"] == calls_of(choice)
        assert streamed["finish_reason"] == "tool_calls"
        assert streamed["message"]["content"] == "Let me see."


SHELL: Any = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command."}}
COMMAND = 'ls "a"\n'
SHELL_CALL = CALL.replace("weather", "shell").replace(
    '{"city": "Paris"}', json.dumps({"input": COMMAND})
)


INPUTS = (
    "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls %}"
    "{{ call.function.arguments.input }}{% endfor %}{% endfor %}{{ '<tool_call>' }}"
)


async def test_custom_tools() -> None:
    flat = {"type": "custom", **SHELL["custom"]}
    async with saying("Well. " + SHELL_CALL + CALL, chat_template=INPUTS) as app:
        for tool in (SHELL, flat):
            choice = await ask(app, tools=[tool, TOOL])
            first, second = choice["message"]["tool_calls"]
            called = {"name": "shell", "input": COMMAND}
            assert first == {"id": first["id"], "type": "custom", "custom": called}
            assert second["function"]["name"] == "weather"
            assert choice["finish_reason"] == "tool_calls"
        response = await app.chat(max_tokens=None, stream=True, tools=[SHELL, TOOL])
        deltas = [chunk["choices"][0]["delta"] for chunk in events(response.text)]
        pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
        mine = [piece for piece in pieces if piece["index"] == 0]
        assert "".join(piece["custom"]["input"] for piece in mine) == COMMAND
        assert [piece.get("type") for piece in mine] == ["custom", *[None] * (len(mine) - 1)]
        assert {piece["index"] for piece in pieces} == {0, 1}
        results = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "tool_calls": [first]},
            {"role": "tool", "tool_call_id": first["id"], "content": "a"},
        ]
        answer = await app.chat(messages=results, tools=[SHELL], return_prompt_text=True)
        assert answer.json()["prompt_text"] == f"Hi{COMMAND}a<tool_call>"


async def test_a_custom_tool_that_must_be_called_follows_its_grammar() -> None:
    inner = {"syntax": "regex", "definition": "l[a-z]"}
    tool = {"type": "custom", "custom": {"name": "shell"}}
    tool["custom"]["format"] = {"type": "grammar", "grammar": inner}  # type: ignore[index]
    named = {"type": "custom", "custom": {"name": "shell"}}
    allowed = {"mode": "required", "tools": [named]}
    choices: list[Any] = ["required", named, {"type": "allowed_tools", "allowed_tools": allowed}]
    async with saying("ls", chat_template=INPUTS) as app:
        for choice in choices:
            tools = [tool, TOOL] if isinstance(choice, dict) else [tool]
            found = await ask(app, tools=tools, tool_choice=choice)
            [call] = found["message"]["tool_calls"]
            assert call["custom"] == {"name": "shell", "input": "ls"}
        inner["definition"] = "("
        answer = await app.chat(tools=[tool], tool_choice="required")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tools[0].custom.format.definition"
        inner |= {"syntax": "lark", "definition": 'start: "(" start ")" | "a"'}
        answer = await app.chat(tools=[tool])
        [notice] = answer.json()["warnings"]
        assert notice["param"] == "tools[0].custom.format"


async def test_only_a_call_has_no_content() -> None:
    async with saying(CALL) as app:
        assert (await ask(app))["message"]["content"] is None


async def test_the_first_of_parallel_calls() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    async with saying(call + call, chat_template="{{ '<tool_call>' }}") as app:
        assert len(calls_of(await ask(app))) == 2
        assert len(calls_of(await ask(app, parallel_tool_calls=False))) == 1
        assert len((await stream(app, parallel_tool_calls=False))["calls"]) == 1


async def test_no_tools_no_calls() -> None:
    async with saying(CALL) as app:
        for fields in ({"tools": None}, {"tool_choice": "none"}):
            choice = await ask(app, **fields)
            assert choice["message"]["content"] == CALL
            assert choice["finish_reason"] == "stop"


async def test_reasoning() -> None:
    async with saying("Hm.\n</think>\nYes.") as app:
        choice = await ask(app, chat_template_kwargs={"think": True})
        assert choice["message"]["content"] == "Yes."
        assert choice["message"]["reasoning_content"] == "Hm."
        assert choice["message"]["reasoning"] == "Hm."
        assert choice["finish_reason"] == "stop"
        streamed = await stream(app, chat_template_kwargs={"think": True})
        assert streamed["message"] == {
            "role": "assistant", "content": "Yes.", "reasoning": "Hm.", "reasoning_content": "Hm.",
        }  # fmt: skip
        hidden = await ask(app, chat_template_kwargs={"think": True}, include_reasoning=False)
        assert "reasoning" not in hidden["message"]
    async with saying("<think>Hm.</think>Yes.", reasoning_parser="none") as app:
        assert (await ask(app))["message"]["content"] == "<think>Hm.</think>Yes."


async def test_variables_of_the_template_have_defaults() -> None:
    async with saying("Hm.</think>Yes.", default_chat_template_kwargs={"think": True}) as app:
        assert (await ask(app))["message"]["content"] == "Yes."
        choice = await ask(app, chat_template_kwargs={"think": False})
        assert choice["message"]["content"] == "Hm.</think>Yes."


async def test_an_empty_answer_has_empty_content_whole_and_streamed() -> None:
    async with saying("") as app:
        assert (await ask(app))["message"]["content"] == ""
        response = await app.chat(max_tokens=None, tools=[TOOL], stream=True)
        found = [chunk["choices"][0]["delta"].get("content") for chunk in events(response.text)]
        assert found == [None, ""]


async def test_an_answer_of_a_tool_goes_to_the_template() -> None:
    async with saying("ok") as app:
        called = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        }
        answer = {"role": "tool", "tool_call_id": "1", "content": "sunny"}
        messages = [{"role": "user", "content": "a"}, called, answer]
        body = (await app.chat(messages=messages)).json()
        assert body["usage"]["prompt_tokens"] == len("user:aassistant:Paristool:sunny")
        with_tools = (await app.chat(messages=messages, tools=[TOOL])).json()
        assert with_tools["usage"]["prompt_tokens"] > body["usage"]["prompt_tokens"]


USER = {"role": "user", "content": "a"}
WEATHER = {"id": "1", "function": {"name": "weather", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{}]}, "tools[0].function"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{**TOOL, "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
        ),
        ({"tools": [TOOL], "guided_regex": "a"}, "tools"),
        ({"messages": [{**USER, "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        ({"messages": [{**USER, "tool_calls": [WEATHER]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ],
)
async def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    async with saying("ok") as app:
        response = await app.chat(**fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


async def test_a_template_without_tools() -> None:
    async with saying("ok", chat_template="{{ messages[0].content }}") as app:
        response = await app.chat(tools=[TOOL])
        assert response.status_code == 400
        assert "--tool-call-parser" in response.json()["error"]["message"]
    async with saying(
        CALL, chat_template="{{ messages[0].content }}", tool_call_parser="hermes"
    ) as app:
        assert calls_of(await ask(app))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (CALL, ""),
        (f"I look.\n{CALL}", "I look."),
        (f"{CALL} So, é.\n", "So, é."),
        ("<think>\nHm.\n</think>\n\nYes: <tool", "Yes: <tool"),
        (f"<think>Hm.</think>Yes.\n\n{CALL}", "Yes."),
    ],
)
async def test_logprobs_are_the_contents(text: str, content: str) -> None:
    """Those of reasoning and calls are left out, in streams as well, where text may come later than
    its tokens."""
    async with saying(text) as app:
        choice = await ask(app, logprobs=True, top_logprobs=0)
        told = choice["logprobs"]["content"]
        assert bytes(b for token in told for b in token["bytes"]).decode() == content
        assert (choice["message"]["content"] or "") == content
        response = await app.chat(
            max_tokens=None, tools=[TOOL], logprobs=True, top_logprobs=0, stream=True
        )
        streamed = [
            token
            for chunk in events(response.text)
            for each in chunk["choices"]
            if each["logprobs"]
            for token in each["logprobs"]["content"]
        ]
        assert streamed == told


SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
JSON_ONLY = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}


async def test_a_structure_and_tools() -> None:
    """The answer is the structure, or calls."""
    async with saying('{"a": 1}') as app:
        choice = await ask(app, response_format=JSON_ONLY)
        assert choice["message"]["content"] == '{"a": 1}'
    async with saying(CALL) as app:
        assert calls_of(await ask(app, response_format=JSON_ONLY))
        assert calls_of(await ask(app, response_format={"type": "json_object"}))
    async with saying('{"city": "Paris"}') as app:
        named = {"type": "function", "function": {"name": "weather"}}
        assert calls_of(await ask(app, response_format=JSON_ONLY, tool_choice=named))
    async with saying("[weather()]", tool_call_parser="pythonic") as app:
        assert calls_of(await ask(app, response_format=JSON_ONLY))
        response = await app.chat(tools=[TOOL], guided_regex="a+")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tools"
