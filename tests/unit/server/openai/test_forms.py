"""Older forms of a chat through the official client: functions, refusals; and allowed tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.unit.server.fake_engine import MODEL, Running, running
from tests.unit.server.openai.test_tools import CALL, TEMPLATE, TOOL, saying

USER: dict[str, Any] = {"role": "user", "content": "a"}
OTHER: dict[str, Any] = {"type": "function", "function": {"name": "news"}}
SHOWN = TEMPLATE + "{% for m in messages %}[{{ m.role }} {{ m.tool_call_id }}]{% endfor %}"


@asynccontextmanager
async def asking(text: str, **options: Any) -> AsyncIterator[tuple[Running, Any]]:
    """A server whose model says `text`, and `create` of the official client's chats."""
    async with saying(text, **options) as app:

        async def create(**fields: Any) -> Any:
            asked = {"model": MODEL, "messages": [USER], "temperature": 0, **fields}
            return await app.openai_client.chat.completions.create(**asked)

        yield app, create


async def test_functions_are_called() -> None:
    async with asking("See. " + CALL) as (_, create):
        asked = {"functions": [TOOL["function"]], "function_call": "auto"}
        [choice] = (await create(**asked)).choices
        assert choice.finish_reason == "function_call"
        assert choice.message.content == "See."
        assert choice.message.tool_calls is None
        called = choice.message.function_call
        assert (called.name, called.arguments) == ("weather", '{"city": "Paris"}')
        chunks = [chunk.choices[0] async for chunk in await create(**asked, stream=True)]
        pieces = [c.delta.function_call for c in chunks if c.delta.function_call]
        assert pieces[0].name == "weather"
        assert "".join(piece.arguments for piece in pieces) == called.arguments
        assert chunks[-1].finish_reason == "function_call"


async def test_roles_that_the_template_names() -> None:
    template = SHOWN + """{% set own = 'ipython', "document", '<|end|>' %}"""
    async with asking("Sun.", chat_template=template) as (app, create):
        for role in ("ipython", "document"):
            messages = [USER, {"role": role, "content": "b", "tool_call_id": "c"}]
            answer = await create(messages=messages, extra_body={"return_token_ids": True})
            prompt = app.engine.tokenizer.decode(answer.prompt_token_ids)
            assert f"[{role} c]" in prompt
        for role in ("end", "ipyth", "<|end|>", "", "observation"):
            with pytest.raises(openai.BadRequestError, match="chat template names") as caught:
                await create(messages=[USER, {"role": role, "content": "b"}])
            assert caught.value.param == "messages[1].role"


async def test_a_function_is_named() -> None:
    async with asking('{"city": "Paris"}') as (_, create):
        asked = {"functions": [TOOL["function"]], "function_call": {"name": "weather"}}
        [choice] = (await create(**asked)).choices
        assert choice.message.function_call.arguments == '{"city": "Paris"}'
        for wrong in ({"function_call": {"name": "x"}}, {"tools": [TOOL]}):
            with pytest.raises(openai.BadRequestError):
                await create(**{**asked, **wrong})
        with pytest.raises(openai.BadRequestError) as caught:
            await create(function_call={"name": "weather"})
        assert caught.value.param == "function_call"


async def test_a_function_that_was_called_is_a_tool() -> None:
    """The prompt is that of the same conversation in the newer form."""
    arguments = '{"city": "Paris"}'
    older = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "weather", "arguments": arguments},
        },
        {"role": "function", "name": "weather", "content": "sun"},
    ]
    call = {
        "id": "000000001",
        "type": "function",
        "function": {"name": "weather", "arguments": arguments},
    }
    newer = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "weather", "tool_call_id": "000000001", "content": "sun"},
    ]
    async with asking("Yes.", chat_template=SHOWN) as (_, create):
        asked = {"extra_body": {"return_token_ids": True}}
        old = await create(messages=older, functions=[TOOL["function"]], **asked)
        new = await create(messages=newer, tools=[TOOL], **asked)
        assert old.prompt_token_ids == new.prompt_token_ids


async def test_calls_and_results_without_ids_belong_together_in_order() -> None:
    def conversation(*ids: str) -> list[Any]:
        functions = [{"name": "weather", "arguments": f'{{"city": "{c}"}}'} for c in "ab"]
        calls: list[Any] = [{"function": function} for function in functions]
        results: list[Any] = [{"role": "tool", "content": text} for text in ("sun", "rain")]
        for call, result, call_id in zip(calls, results, ids, strict=False):
            call["id"] = result["tool_call_id"] = call_id
        return [USER, {"role": "assistant", "tool_calls": calls}, *results]

    async with asking("Yes.", chat_template=SHOWN) as (_, create):
        asked = {"extra_body": {"return_token_ids": True}, "tools": [TOOL]}
        without = await create(messages=conversation(), **asked)
        numbered = await create(messages=conversation("000000001", "000000002"), **asked)
        assert without.prompt_token_ids == numbered.prompt_token_ids
        half = conversation("x", "y")
        del half[-2]["tool_call_id"], half[-1]["tool_call_id"]
        whole = await create(messages=conversation("x", "y"), **asked)
        assert (await create(messages=half, **asked)).prompt_token_ids == whole.prompt_token_ids
        half[-2]["tool_call_id"] = "x"  # so the other result belongs to the call that is left
        assert (await create(messages=half, **asked)).prompt_token_ids == whole.prompt_token_ids


async def test_a_refusal_is_text() -> None:
    async with asking("Yes.") as (_, create):
        asked = {"extra_body": {"return_token_ids": True}}
        said = [
            {"role": "assistant", "content": "I cannot."},
            {"role": "assistant", "content": None, "refusal": "I cannot."},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]},
        ]
        prompts = [
            (await create(messages=[USER, message], **asked)).prompt_token_ids for message in said
        ]
        assert prompts[0] == prompts[1] == prompts[2]


async def test_allowed_tools_are_those_that_are_shown() -> None:
    chosen = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    async with asking(CALL) as (_, create):
        asked = {"extra_body": {"return_token_ids": True}}
        choice = {"type": "allowed_tools", "allowed_tools": chosen}
        both = await create(tools=[TOOL, OTHER], tool_choice=choice, **asked)
        one = await create(tools=[TOOL], **asked)
        assert both.prompt_token_ids == one.prompt_token_ids
        assert both.choices[0].message.tool_calls[0].function.name == "weather"
        for wrong, param in [
            ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
            (
                {**choice, "allowed_tools": {**chosen, "tools": []}},
                "tool_choice.allowed_tools.tools",
            ),
            ({"type": "function"}, "tool_choice.function"),
        ]:
            with pytest.raises(openai.BadRequestError) as caught:
                await create(tools=[TOOL, OTHER], tool_choice=wrong)
            assert caught.value.param == param
        with pytest.raises(openai.BadRequestError):
            await create(tools=[OTHER], tool_choice=choice)
    required = {**choice, "allowed_tools": {**chosen, "mode": "required"}}
    async with asking('[{"name": "weather", "parameters": {"city": "Paris"}}]') as (_, create):
        [answer] = (await create(tools=[TOOL, OTHER], tool_choice=required)).choices
        assert answer.message.tool_calls[0].function.arguments == '{"city": "Paris"}'


@pytest.mark.parametrize("shown", [True, False])
async def test_tokens_of_reasoning_are_counted(shown: bool) -> None:
    async with asking("Hmm.</think>Yes.") as (_, create):
        kwargs = {"think": True}
        asked = {"extra_body": {"include_reasoning": shown, "chat_template_kwargs": kwargs}}
        whole = (await create(**asked)).usage.completion_tokens_details
        assert whole.reasoning_tokens == len("Hmm.")
        options = {"include_usage": True}
        stream = await create(**asked, stream=True, stream_options=options)
        last = [chunk async for chunk in stream][-1]
        assert last.usage.completion_tokens_details == whole
    async with asking("Yes.") as (_, create):
        details = (await create()).usage.completion_tokens_details
        assert details.reasoning_tokens == 0


async def test_documents_are_for_templates_that_read_them() -> None:
    documents = [{"title": "T", "text": "D" * 20}]
    template = "{{ messages[0].content }}{% for d in documents %}{{ d.text }}{% endfor %}"
    async with asking("Yes.", chat_template=template) as (_, create):
        assert (await create(extra_body={"documents": documents})).usage.prompt_tokens == 21
    async with asking("Yes.") as (_, create):
        with pytest.raises(openai.BadRequestError) as caught:
            await create(extra_body={"documents": documents})
        assert caught.value.param == "documents"


async def test_a_template_of_the_request_needs_trust() -> None:
    asked = {"extra_body": {"chat_template": "{{ messages[0].content }}xyz"}}
    async with asking("Yes.", trust_request_chat_template=True) as (_, create):
        assert (await create(**asked)).usage.prompt_tokens == 4
    async with asking("Yes.") as (_, create):
        with pytest.raises(openai.BadRequestError) as caught:
            await create(**asked)
        assert "--trust-request-chat-template" in caught.value.message


async def test_echo_begins_the_answer_with_the_last_message() -> None:
    begun = [USER, {"role": "assistant", "content": "Once "}]
    go_on = {"add_generation_prompt": False, "continue_final_message": True}
    async with asking("upon") as (_, create):
        asked = {"messages": begun, "extra_body": {"echo": True, **go_on}}
        assert (await create(**asked)).choices[0].message.content == "Once upon"
        chunks = [c.choices[0].delta async for c in await create(**asked, stream=True)]
        assert "".join(delta.content or "" for delta in chunks) == "Once upon"
        plain = await create(extra_body={"echo": True})
        assert plain.choices[0].message.content == "upon"


ON, OFF = {"enable_thinking": True}, {"enable_thinking": False}
DEEP_ON, DEEP_OFF = {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}
SWITCHED = "{{ 'on' if enable_thinking else 'off' }}"
DEEPSEEK = """\
{% if not thinking is defined %}{% set thinking = false %}{% endif %}\
{% if thinking %}on{% else %}off{% endif %}{# </think> #}"""


@pytest.mark.parametrize("template", [SWITCHED, DEEPSEEK])
@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (ON, "on"), (OFF, "off"), (DEEP_ON, "on"), (DEEP_OFF, "off"),
        ({"reasoning_effort": "none"}, "off"), ({"think": True}, "on"),
    ],
)  # fmt: skip
async def test_thinking_is_switched_by_other_servers_fields(
    template: str, fields: dict[str, Any], shown: str
) -> None:
    async with running(chat_template=template) as app:
        body = (await app.chat(**fields, return_prompt_text=True)).json()
        assert (body["prompt_text"], "warnings" in body) == (shown, False)
        assert (await app.http.post("/tokenize", json={"messages": [USER], **fields})).json()[
            "count"
        ] == len(shown)


@pytest.mark.parametrize(("fields", "shown"), [(ON, "on"), (DEEP_ON, "on"), (DEEP_OFF, "off")])
async def test_switches_of_thinking_that_the_template_does_not_have(
    fields: dict[str, Any], shown: str
) -> None:
    async with running(chat_template="{{ 'a' }}") as app:  # never thinks
        body = (await app.chat(**fields)).json()
        assert [each["param"] for each in body.get("warnings", [])] == [*fields] * (shown == "on")
    async with running(chat_template="{{ 'a' }}", reasoning_parser="qwen3") as app:  # always thinks
        response = await app.chat(**fields)
        assert response.status_code == (200 if shown == "on" else 400), response.text
        assert shown == "on" or response.json()["error"]["param"] in fields


@pytest.mark.parametrize(
    "fields",
    [
        {**ON, "reasoning_effort": "none"},
        {**OFF, "reasoning_effort": "high"},
        {**ON, "chat_template_kwargs": OFF},
        {"enable_thinking": 2},
        {"thinking": {"type": "x"}},
    ],
)
async def test_switches_of_thinking_that_contradict_or_mean_nothing(fields: dict[str, Any]) -> None:
    async with running(chat_template=SWITCHED) as app:
        response = await app.chat(**fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] in ("enable_thinking", "thinking")


@pytest.mark.parametrize(
    ("name", "inner"), [("reasoning", "max_tokens"), ("thinking", "budget_tokens")]
)
async def test_budgets_of_thinking_in_other_forms(name: str, inner: str) -> None:
    kind = {"type": "enabled"} if name == "thinking" else {}

    def given(budget: object) -> dict[str, Any]:
        return {name: {**kind, inner: budget}}

    async with running(chat_template="{{ 'a' }}") as app:  # never thinks
        body = (await app.chat(**given(5))).json()
        assert body["warnings"][0]["param"] == f"{name}.{inner}"
    async with running(chat_template="{{ 'a' }}", reasoning_parser="qwen3") as app:
        assert "warnings" not in (await app.chat(**given(5), thinking_token_budget=5)).json()
        for fields, param in (
            (given(-5), "thinking_token_budget"),
            (given("5"), name),
            ({**given(5), "thinking_token_budget": 6}, name),
        ):
            assert (await app.chat(**fields)).json()["error"]["param"] == param


async def test_a_level_of_thinking_is_the_effort() -> None:
    async with running(chat_template="{{ reasoning_effort }}") as app:
        body = (await app.chat(think="low", return_prompt_text=True)).json()
        assert body["prompt_text"] == "low"
        wrong = await app.chat(think="low", reasoning_effort="high")
        assert wrong.json()["error"]["param"] == "think"


@pytest.mark.parametrize("given", [{"a": 1}, 5, True])
async def test_a_tools_result_may_be_json(given: object) -> None:
    async with running(chat_template="{{ messages[-1].content }}") as app:
        result = {"role": "tool", "tool_call_id": "c", "content": given}
        body = (await app.chat(messages=[USER, result], return_prompt_text=True)).json()
        assert body["prompt_text"] == json.dumps(given)
        wrong = await app.chat(messages=[USER, {"role": "user", "content": given}])
        assert wrong.status_code == 400


async def test_marks_of_caches_have_no_effect() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    parts = [{"type": "text", "text": "a", **mark}]
    async with running(strict_fields=True) as app:
        assert (await app.chat(messages=[{"role": "user", "content": parts, **mark}])).is_success
    async with running() as app:
        body = (await app.chat(messages=[{"role": "user", "content": parts}])).json()
        [warning] = body["warnings"]
        assert (warning["param"], "cached" in warning["message"]) == (
            "messages[0].content[0].cache_control", True,
        )  # fmt: skip


async def test_a_seed_has_mistral_s_name(app: Running) -> None:
    answer = (await app.chat(random_seed=5)).json()
    assert "warnings" not in answer
    wrong = (await app.chat(random_seed="x")).json()["error"]
    assert wrong["param"] == "seed"
