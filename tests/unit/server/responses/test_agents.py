"""What coding agents send to the Responses API, through the official client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.unit.server.fake_engine import MODEL, Running
from tests.unit.server.openai.test_tools import CALL, saying
from tests.unit.server.responses.test_responses import THINKING, TOOL

SHELL: Any = {"type": "custom", "name": "shell", "description": "Runs a command."}
GRAMMAR: Any = {"type": "grammar", "syntax": "lark", "definition": 'start: "ls" start?'}
COMMAND = 'ls "a b"\n# é'
SHELL_CALL = (
    f'<tool_call>{{"name": "shell", "arguments": {json.dumps({"input": COMMAND})}}}</tool_call>'
)
SEEN = (
    "{% for tool in tools or [] %}{{ tool.function.description }}{% endfor %}"
    "{% for message in messages %}"
    "{{ message.role }}:{{ message.reasoning_content }}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}[{{ call.function.name }}"
    "{% for name, value in call.function.arguments.items() %} {{ name }}={{ value }}{% endfor %}]"
    "{% endfor %}{% endfor %}{% if 0 %}<think></think><tool_call>{% endif %}"
)
"""What the model sees, whose characters are its tokens."""


async def create(app: Running, **fields: Any) -> Response:
    body: dict[str, Any] = {"model": MODEL, "input": "Hi", "temperature": 0, **fields}
    found: Response = await app.openai_client.responses.create(**body)
    return found


async def seen(app: Running, **fields: Any) -> int:
    """The length of what the model sees."""
    body: dict[str, Any] = {"model": MODEL, **fields}
    return (await app.openai_client.responses.input_tokens.count(**body)).input_tokens


def warned(response: Response) -> list[str]:
    return [notice["param"] for notice in getattr(response, "warnings", [])]


async def test_a_custom_tool_is_called() -> None:
    async with saying("Well. " + SHELL_CALL, chat_template=SEEN) as app:
        found = await create(app, tools=[SHELL])
        message, call = found.output
        assert message.type == "message"
        assert call.type == "custom_tool_call"
        assert (call.name, call.input) == ("shell", COMMAND)
        assert not warned(found)
        async with app.openai_client.responses.stream(
            model=MODEL, input="Hi", tools=[SHELL], temperature=0
        ) as stream:
            events = [event async for event in stream]
        deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
        [done] = [e.input for e in events if e.type == "response.custom_tool_call_input.done"]
        assert "".join(deltas) == done == COMMAND
        assert events[-1].type == "response.completed"
        last = events[-1].response.output[1]
        assert last.type == "custom_tool_call"
        assert (last.input, last.status) == (COMMAND, "completed")  # type: ignore[attr-defined]


async def test_a_call_of_a_custom_tool_goes_on() -> None:
    async with saying(SHELL_CALL, chat_template=SEEN) as app:
        first = await create(app, tools=[SHELL])
        [call] = first.output
        assert call.type == "custom_tool_call"
        result: Any = {
            "type": "custom_tool_call_output",
            "call_id": call.call_id,
            "output": "a b",
        }
        told: Any = [{"role": "user", "content": "Hi"}, call, result]
        expected = len(f"user:Hiassistant:[shell input={COMMAND}]tool:a b".encode())
        assert await seen(app, input=told) == expected
        gone_on = await seen(app, input=[result], previous_response_id=first.id)
        assert gone_on == expected


async def test_a_grammar_is_shown_and_the_client_told() -> None:
    async with saying("ok", chat_template=SEEN) as app:
        plain = await create(app, tools=[SHELL])
        found = await create(app, tools=[TOOL, {**SHELL, "format": GRAMMAR}])
        assert warned(found) == ["tools[1].format"]
        assert found.usage.input_tokens > plain.usage.input_tokens + len(GRAMMAR["definition"])


@pytest.mark.parametrize(
    "kind",
    [
        "web_search",
        "file_search",
        "code_interpreter",
        "mcp",
        "computer_use_preview",
        "image_generation",
        "local_shell",
        "shell",
        "apply_patch",
        "tool_search",
    ],
)
async def test_tools_of_others_are_left_out(kind: str) -> None:
    async with saying(CALL) as app:
        found = await create(app, tools=[{"type": kind, "name": "x", "tools": []}, TOOL])
        assert warned(found) == ["tools[0]"]
        assert [tool.type for tool in found.tools] == ["function"]
        assert found.output[0].type == "function_call"


def namespace(name: str, *tools: Any) -> Any:
    return {"type": "namespace", "name": name, "description": "About it.", "tools": list(tools)}


async def test_the_tools_of_a_namespace() -> None:
    later = {**TOOL, "defer_loading": True}
    tools = [SHELL, namespace("crm", {"type": "mcp"}, later)]
    async with saying(CALL, chat_template=SEEN) as app:
        found = await create(app, tools=tools)
        assert warned(found) == ["tools[1].tools[0]", "tools[1].tools[1].defer_loading"]
        [call] = found.output
        assert call.type == "function_call"
        assert (call.namespace, call.name) == ("crm", TOOL["name"])
        sent_back: Any = [{"role": "user", "content": "Hi"}, call]
        again = await create(app, input=sent_back, tools=tools)
        assert warned(again) == warned(found)
        assert await seen(app, input="Hi", tools=tools) > await seen(
            app, input="Hi", tools=[SHELL, TOOL]
        )
        for choice in (
            {"type": "function", "name": TOOL["name"]},
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "namespace", "name": "crm"}],
            },
        ):
            await create(app, tools=tools, tool_choice=choice)
        wrong = {**TOOL, "parameters": {"type": "no"}}
        with pytest.raises(openai.BadRequestError) as caught:
            await create(app, tools=[namespace("crm", wrong)], tool_choice="required")
        assert caught.value.param == "tools[0].tools[0].parameters"


async def test_one_name_in_two_namespaces() -> None:
    name = TOOL["name"]
    written = CALL.replace(f'"{name}"', f'"b__{name}"')
    tools = [namespace("a", TOOL), namespace("b", TOOL)]
    async with saying(written, chat_template=SEEN) as app:
        [call] = (await create(app, tools=tools)).output
        assert call.type == "function_call"
        assert (call.namespace, call.name) == ("b", name)
        told: Any = [{"role": "user", "content": "Hi"}, call]
        longer = await seen(app, input=told, tools=tools)
        assert longer - await seen(app, input=told) > len(f"b__{name}") - len(name)
        own = {**call.model_dump(), "namespace": None}
        assert longer == await seen(app, input=[told[0], own], tools=tools) + len("b__")


async def test_a_tool_that_has_to_be_called_is_held_to_its_grammar() -> None:
    held: Any = {**SHELL, "format": GRAMMAR}
    async with saying("ls", chat_template=SEEN) as app:
        found = await create(app, tools=[held], tool_choice="required")
        [call] = found.output
        assert call.type == "custom_tool_call"
        assert call.input == "ls"
        assert not warned(found)
        several = await create(app, tools=[held, SHELL | {"name": "other"}], tool_choice="required")
        assert warned(several) == ["tools[0].format"]


async def test_allowed_tools() -> None:
    async with saying(CALL, chat_template=SEEN) as app:
        both = [TOOL, SHELL]
        choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{**TOOL, "x": 2**70}]}
        found = await create(app, tools=both, tool_choice=choice)
        only = await create(app, tools=[TOOL])
        assert found.usage.input_tokens == only.usage.input_tokens
        assert len(found.tools) == 2
        assert found.tool_choice.type == "allowed_tools"  # type: ignore[union-attr]
        nothing = {**choice, "tools": [{"type": "web_search"}]}
        assert (await create(app, tools=both, tool_choice=nothing)).output[0].type == "message"


@pytest.mark.parametrize("store", [True, False])
async def test_reasoning_comes_back_as_opaque_text(store: bool) -> None:
    include: Any = ["reasoning.encrypted_content"]
    async with saying("<think>Hm.</think>Yes.", chat_template=SEEN) as app:
        found = await create(app, include=include, store=store)
        reasoning, message = found.output
        assert reasoning.type == "reasoning"
        assert reasoning.content[0].text == "Hm."
        assert reasoning.encrypted_content
        hidden: Any = {
            "type": "reasoning",
            "id": reasoning.id,
            "summary": [],
            "encrypted_content": reasoning.encrypted_content,
        }
        told: Any = [{"role": "user", "content": "Hi"}, hidden, message]
        assert await seen(app, input=told) == len("user:Hiassistant:Hm.Yes.")
        assert await seen(app, input=[told[0], *found.output]) == len("user:Hiassistant:Hm.Yes.")
        async with app.openai_client.responses.stream(
            model=MODEL, input="Hi", include=include
        ) as stream:
            last = (await stream.get_final_response()).output[0]
        assert last.type == "reasoning"
        assert last.encrypted_content == reasoning.encrypted_content
        without = (await create(app)).output[0]
        assert without.type == "reasoning"
        assert without.encrypted_content is None


ELSEWHERE: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABo"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "quire1.?"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
    {"type": "file_search_call", "id": "fs_1", "queries": [], "status": "completed"},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "status": "completed"},
    {"type": "image_generation_call", "id": "ig_1", "result": None, "status": "completed"},
    {"type": "mcp_list_tools", "id": "m_1", "server_label": "s", "tools": []},
    {"type": "compaction", "id": "c_1", "encrypted_content": "gAAAAABo"},
]


@pytest.mark.parametrize("item", ELSEWHERE)
async def test_items_of_other_models_without_text(item: dict[str, Any]) -> None:
    async with saying("ok", chat_template=SEEN) as app:
        messages: Any = [{"role": "user", "content": "a"}, item, {"role": "user", "content": "b"}]
        found = await create(app, input=messages)
        assert found.usage.input_tokens == len("user:auser:b")
        assert warned(found)[0].startswith("input[1]")


THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        (
            [
                {"type": "shell_call", "call_id": "1", "action": {"commands": ["ls"]}},
                {"type": "shell_call_output", "call_id": "1", "output": "a"},
            ],
            "assistant:[shell commands=['ls']]tool:a",
        ),
        (
            [
                {"type": "local_shell_call", "call_id": "1", "action": {"command": ["ls"]}},
                {"type": "local_shell_call_output", "id": "1", "output": "a"},
            ],
            "assistant:[local_shell command=['ls']]tool:a",
        ),
        (
            [
                {
                    "type": "mcp_call",
                    "id": "1",
                    "name": "find",
                    "arguments": '{"a": 1}',
                    "server_label": "s",
                    "output": "b",
                }
            ],
            "assistant:[find a=1]tool:b",
        ),
        (
            [{"type": "shell_call", "call_id": "1", "action": {"n": 2**70}}],
            f"assistant:[shell n={2**70}]",
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": "So.",
                    "tool_calls": [
                        {"id": "1", "function": {"name": "find", "arguments": '{"a": 1}'}},
                        {"id": "2", "type": "custom", "custom": {"name": "run", "input": "ls"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "b"},
            ],
            "assistant:So.[find a=1][run input=ls]tool:b",
        ),
        ([THOUGHT], "assistant:Hm."),
        ([THOUGHT, {"role": "user", "content": "b"}], "assistant:Hm.user:b"),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
            "assistant:No.",
        ),
        (
            [
                {
                    "role": "assistant",
                    "phase": "commentary",
                    "content": [
                        {"type": "output_text", "text": "So.", "annotations": [{"type": "x"}]}
                    ],
                }
            ],
            "assistant:So.",
        ),
    ],
)
async def test_items_of_other_models_with_text(items: list[Any], shown: str) -> None:
    async with saying("ok", chat_template=SEEN) as app:
        told = [{"role": "user", "content": "a"}, *items]
        assert await seen(app, input=told) == len(f"user:a{shown}")


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
async def test_media_that_a_tool_returned(kind: str) -> None:
    parts = [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"},
        {"type": "input_file", "file_data": "AA", "filename": "a.pdf"},
    ]
    call = {"call_id": "1", "name": "look", "arguments": "{}", "input": ""}
    del call["input" if kind == "function_call" else "arguments"]
    items: Any = [
        {"role": "user", "content": "a"},
        {"type": kind, **call},
        {"type": f"{kind}_output", "call_id": "1", "output": parts},
    ]
    shown = "[look]" if kind == "function_call" else "[look input=]"
    note = "See:\n[image left out: this model reads text]\n[file left out: this model reads text]"
    async with saying("ok", chat_template=SEEN) as app:
        found = await create(app, input=items)
        assert warned(found) == ["input[2].output[1]", "input[2].output[2]"]
        assert await seen(app, input=items) == len(f"user:aassistant:{shown}tool:{note}")
        parts[1]["type"] = "input_imag"
        with pytest.raises(openai.BadRequestError):
            await create(app, input=items)


async def test_a_template_speaks_for_itself() -> None:
    template = "{{ raise_exception('System messages come first') }}"
    async with saying("ok", chat_template=template) as app:
        with pytest.raises(openai.BadRequestError) as caught:
            await create(app)
        error: Any = caught.value.body
        assert error["param"] == "input"
        assert "failed on this conversation: System messages come first." in error["message"]
        with pytest.raises(openai.BadRequestError) as caught:
            await create(app, input=[])
        assert "input is empty" in str(caught.value)


async def test_an_item_is_referred_to() -> None:
    async with saying("Yes.", chat_template=SEEN) as app:
        first = await create(app)
        mine: Any = {"id": "msg_mine", "role": "user", "content": "secret"}
        await create(app, input=[mine])
        for reference in ({"type": "item_reference"}, {}, {"type": None}):
            told: Any = [
                {"role": "user", "content": "Hi"},
                {"id": first.output[0].id, **reference},
            ]
            assert await seen(app, input=told) == len("user:Hiassistant:Yes.")
        for name in ("msg_mine", "msg_none", ""):  # one that a client chose is not for others
            with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as caught:
                await create(app, input=[{"type": "item_reference", "id": name}])
            assert caught.value.body["param"] == "input[0].id"  # type: ignore[index]
        await app.openai_client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await create(app, input=told)


WITHOUT_EFFECT: list[tuple[dict[str, Any], list[str]]] = [
    ({"include": ["reasoning.encrypted_content"]}, []),
    ({"include": ["web_search_call.action.sources"]}, ["include"]),
    ({"reasoning": {"summary": "auto"}}, ["reasoning.summary"]),
    ({"reasoning": {"summary": None, "effort": None}}, []),
    ({"reasoning": {"effort": "default"}}, ["reasoning.effort"]),
    ({"text": {"verbosity": "low"}}, ["text.verbosity"]),
    ({"service_tier": "priority"}, ["service_tier"]),
    ({"extra_body": {"client_metadata": {"a": "b"}}}, ["client_metadata"]),
    ({"tool_choice": "auto"}, []),
    ({"tool_choice": "auto", "tools": []}, []),
    ({"prompt_cache_key": "a", "safety_identifier": "b", "user": "c"}, []),
    ({"prompt_cache_retention": "24h"}, ["prompt_cache_retention"]),
    ({"max_tool_calls": 3}, ["max_tool_calls"]),
    ({"context_management": [{"type": "compaction"}]}, ["context_management"]),
    ({"parallel_tool_calls": True, "truncation": "disabled", "background": False}, []),
    ({"top_logprobs": 2}, ["top_logprobs"]),
    ({"metadata": {"a": "b"}}, []),
    ({"tools": [{**TOOL, "defer_loading": True}]}, ["tools[0].defer_loading"]),
]


@pytest.mark.parametrize(("fields", "params"), WITHOUT_EFFECT)
async def test_what_has_no_effect_is_told(fields: dict[str, Any], params: list[str]) -> None:
    async with saying("<think>Hm.</think>ok", chat_template=THINKING) as app:
        found = await create(app, **fields)
        assert warned(found) == params
        reasoning = found.output[0]
        assert reasoning.type == "reasoning"
        assert reasoning.summary == []
        async with app.openai_client.responses.stream(
            **{"model": MODEL, "input": "Hi", **fields}
        ) as stream:
            assert warned(await stream.get_final_response()) == params


async def test_tools_and_schemas_in_the_form_of_chats() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    inner = {"name": "x", "schema": schema, "strict": True}
    chat_tool = {"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}
    async with saying("ok", chat_template=THINKING) as app:
        body = {"model": MODEL, "input": "Hi"}
        for tool in (TOOL, chat_tool):
            found = (await app.http.post("/v1/responses", json={**body, "tools": [tool]})).json()
            assert found["tools"][0]["name"] == TOOL["name"]
        name = {"name": TOOL["name"]}
        fields = {"tools": [TOOL], "tool_choice": {"type": "function", "function": name}}
        found = (await app.http.post("/v1/responses", json={**body, **fields})).json()
        assert found["tool_choice"] == {"type": "function", **name}
        wanted = {"format": {"type": "json_schema", "json_schema": inner}}
        found = (await app.http.post("/v1/responses", json={**body, "text": wanted})).json()
        assert found["text"]["format"] == {**found["text"]["format"], **inner}
        wrong = {"format": {"type": "json_schema", "json_schema": 3}}
        response = await app.http.post("/v1/responses", json={**body, "text": wrong})
        assert response.status_code == 400


OUTPUT = {"type": "function_call_output", "call_id": "1"}
CHAT_CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"extra_body": {"enable_thinking": False}}, "enable_thinking"),
    ({"extra_body": {"thinking": {"type": "disabled"}}}, "thinking"),
    ({"extra_body": {"moderation": {"model": "m"}}}, "moderation"),
    ({"tools": [{"type": "funtion", "name": "f"}]}, "tools[0].type"),
    ({"tools": [{"name": "f"}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "custom", "name": "weather"}}, "tool_choice.name"),
    (
        {
            "tools": [TOOL],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f"}],
            },
        },
        "tool_choice.tools[0]",
    ),
    ({"input": [{"type": "unheard_of"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        "input",
    ),
    (
        {
            "input": [
                {
                    "type": "custom_tool_call_output",
                    "call_id": "1",
                    "output": [{"type": "output_file", "file_id": "f"}],
                }
            ]
        },
        "input[0].output[0].type",
    ),
    ({"input": [OUTPUT]}, "input[0].output"),
    *(
        ({"input": [{"role": "assistant", "tool_calls": [call]}]}, "input[0].tool_calls[0]")
        for call in (3, {}, {"function": "f"})
    ),
    (
        {"input": [{"role": "assistant", "tool_calls": [CHAT_CALL] * 5000}]},
        "input",
    ),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_what_would_alter_the_answer_is_refused(fields: dict[str, Any], param: str) -> None:
    async with saying("ok") as app:
        with pytest.raises(openai.BadRequestError) as caught:
            await create(app, **fields)
        assert caught.value.body["param"] == param  # type: ignore[index]
