"""What Anthropic's clients send beside the conversation, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.anthropic.test_messages import HI, TOOL, ask, post, stream
from tests.unit.server.fake_engine import MODEL, Running, running
from tests.unit.server.openai.test_tools import CALL, saying

EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
TOOLS_SHOWN = (
    "{% for tool in tools or [] %}{{ tool.function | tojson }}{% endfor %}"
    "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}"
    "{% if 0 %}<tool_call>{% endif %}"
)
THINKS = (
    "{{ enable_thinking }}{{ reasoning_effort }}"
    "{% for m in messages %}[{{ m.reasoning_content }}]{{ m.content }}{% endfor %}"
    "{% if 0 %}<think></think>{% endif %}"
)


async def prompt(app: Running, **fields: Any) -> str:
    """The text that a request becomes."""
    seen: list[str] = []
    tokenize = app.engine.tokenize

    async def spied(given: Any, special: bool) -> Any:
        tokens = await tokenize(given, special)
        seen.append(app.engine.tokenizer.decode(tokens))
        return tokens

    app.engine.tokenize = spied  # type: ignore[method-assign]
    response = await post(app, "/v1/messages/count_tokens", max_tokens=None, **fields)
    app.engine.tokenize = tokenize  # type: ignore[method-assign]
    assert response.status_code == 200, response.text
    assert response.json()["input_tokens"] == len(seen[-1])
    return seen[-1]


def told(answer: dict[str, Any]) -> dict[str, str]:
    return {each["param"]: each["message"] for each in answer.get("warnings", [])}


async def test_what_agents_always_send_is_no_news() -> None:
    text = {"type": "text", "text": "Hi", "cache_control": EPHEMERAL, "citations": None}
    fields = {
        "messages": [{"role": "user", "content": [text]}],
        "system": [{**text, "text": "Be brief."}],
        "tools": [{**TOOL, "type": "custom", "cache_control": EPHEMERAL, "strict": False}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "metadata": {"user_id": "a", "session": 1},
        "service_tier": "auto",
        "cache_control": EPHEMERAL,
        "stop_sequences": [],
    }
    async with saying("ok", chat_template=TOOLS_SHOWN) as app:
        assert told(await ask(app, max_tokens=9, **fields)) == {}


@pytest.mark.parametrize(("kind", "shown"), [("enabled", "on"), ("disabled", "off")])
async def test_thinking_follows_the_switch_of_the_template(kind: str, shown: str) -> None:
    template = "{% if thinking %}on{% else %}off{% endif %}{# </think> #}"
    budget = {"budget_tokens": 1024} if shown == "on" else {}
    async with running(chat_template=template) as app:
        assert await prompt(app, thinking={"type": kind, **budget}) == shown


IGNORED = {
    "speed": "fast",
    "inference_geo": "eu",
    "container": {"id": "a"},
    "mcp_servers": [{"type": "url", "url": "https://localhost", "name": "a"}],
    "diagnostics": {"previous_message_id": "msg_1"},
    "fallbacks": [{"model": "other"}],
    "user_profile_id": "a",
    "betas": ["context-1m-2025-08-07"],
}


async def test_what_changes_nothing_is_told() -> None:
    async with running() as app:
        assert set(told(await ask(app, max_tokens=3, **IGNORED))) == set(IGNORED)
        assert set(told(await stream(app, max_tokens=3, **IGNORED))) == set(IGNORED)
        assert told(await ask(app, max_tokens=3, mcp_servers=[], container=None)) == {
            "mcp_servers": "It has no effect: The server runs no tools of its own. "
            "Their tools are left out."
        }


async def test_thinking_and_effort_reach_the_template() -> None:
    async with running(chat_template=THINKS) as app:
        for wanted, said in [("enabled", "True"), ("adaptive", "True"), ("disabled", "False")]:
            assert (await prompt(app, thinking={"type": wanted})).startswith(said)
        for effort, said in [("low", "low"), ("max", "xhigh")]:
            assert (await prompt(app, output_config={"effort": effort})).startswith(said)
        budget = {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}
        assert told(await ask(app, thinking=budget)) == {}
    async with running() as app:
        answer = await ask(app, thinking=budget, output_config={"effort": "high"}, max_tokens=3)
        assert set(told(answer)) == {"thinking", "output_config.effort"}


async def test_omitted_thinking_comes_back_from_its_signature() -> None:
    omitted = {"type": "adaptive", "display": "omitted"}
    async with saying("<think>Hm.</think>Yes.", chat_template=THINKS) as app:
        for answer in (await ask(app, thinking=omitted), await stream(app, thinking=omitted)):
            block = answer["content"][0]
            assert block["type"] == "thinking"
            assert block["thinking"] == ""
            messages = [*HI, {"role": "assistant", "content": answer["content"]}, *HI]
            assert "[Hm.]Yes." in await prompt(app, messages=messages)
        for signature in ("quire1.%", "quire1.gA==", "ErUBCkYI", ""):
            block["signature"] = signature
            messages = [*HI, {"role": "assistant", "content": [block]}, *HI]
            assert "[]" in (await prompt(app, messages=messages)).replace("None", "")


@pytest.mark.parametrize("where", ["output_format", "output_config"])
async def test_a_format(where: str, app: Running) -> None:
    schema = {"type": "json_schema", "schema": {"enum": ["bcd"]}}
    wanted = schema if where == "output_format" else {"format": schema}
    response = await post(app, max_tokens=3, **{where: wanted})
    assert response.status_code == 200, response.text
    both = {"output_format": schema, "output_config": {"format": schema}}
    assert "output_format" in (await post(app, **both)).json()["error"]["message"]


async def test_tools() -> None:
    long = "mcp__" + "a" * 123
    tools = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {**TOOL, "input_examples": [{"city": "Oslo"}], "allowed_callers": ["direct"]},
        {**TOOL, "name": long, "defer_loading": True, "eager_input_streaming": True},
        {**TOOL, "name": "hidden", "allowed_callers": ["code_execution_20250825"]},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_20251124", "name": "computer", "display_width_px": 1},
        {"type": "mcp_toolset", "mcp_server_name": "a"},
        {"name": "empty", "input_schema": {"type": "object", "properties": None}},
    ]
    async with saying("ok", chat_template=TOOLS_SHOWN) as app:
        shown = await prompt(app, tools=tools)
        for word in (long, "Oslo", '"command"', "insert_line", "old_path", '"empty"'):
            assert word in shown
        for word in ("web_search", "hidden", "computer", "mcp_toolset", "null"):
            assert word not in shown
        path = "/v1/messages/count_tokens"
        notices = told((await post(app, path, tools=tools, max_tokens=None)).json())
        left_out = {f"tools[{i}]" for i in (0, 3, 7, 8)}
        assert set(notices) == left_out | {"tools[2].defer_loading"}
        assert "web_search_20250305" in notices["tools[0]"]
        none = await ask(app, tools=tools[:1], tool_choice={"type": "auto"})
        assert set(told(none)) == {"tools[0]"}


async def test_input_is_streamed_when_it_is_whole_or_eagerly() -> None:
    broken = CALL.replace('"Paris"', "NaN")
    assert broken != CALL
    async with saying(broken, chat_template=TOOLS_SHOWN) as app:
        fields: dict[str, Any] = {"stream": True, "max_tokens": 100}
        lazy = (await post(app, tools=[TOOL], **fields)).text
        assert lazy.count("input_json_delta") == 1
        assert r"{\"city\":null}" in lazy
    async with saying('{"city": "Paris"}', chat_template=TOOLS_SHOWN) as app:
        fields["tool_choice"] = {"type": "tool", "name": TOOL["name"]}  # never held back
        for eager in (False, True):
            tools = [{**TOOL, "eager_input_streaming": eager}]
            text = (await post(app, tools=tools, **fields)).text
            assert (text.count("input_json_delta") > 1) is eager


async def test_a_full_context_is_no_max_tokens() -> None:
    async with saying("a" * 300) as app:
        length = app.engine.max_model_len
        short = await ask(app, max_tokens=3)
        assert short["stop_reason"] == "max_tokens"
        full = await ask(app, max_tokens=length)
        assert full["stop_reason"] == "model_context_window_exceeded"
        assert "max_tokens" in told(full)


async def test_roles_of_claude_code_are_the_users(app: Running) -> None:
    counts = []
    for role in ("user", "ctx", "msg"):
        messages = [{"role": role, "content": "a"}, {"role": "user", "content": "b"}]
        body = {"model": MODEL, "messages": messages}
        counts.append((await app.http.post("/v1/messages/count_tokens", json=body)).json())
        answer = await app.http.post("/v1/messages", json={**body, "max_tokens": 1})
        assert answer.status_code == 200, answer.text
    assert counts[0] == counts[1] == counts[2]
