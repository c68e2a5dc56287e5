"""Reasoning, texts and calls come in the order in which the model wrote them, in every API, whole
and streamed alike, whichever format they are read from."""

from __future__ import annotations

from typing import Any

import pytest

from quire.server.tools.table import TOOL_PARSERS
from tests.unit.server.anthropic import test_messages as anthropic
from tests.unit.server.openai.test_tools import saying
from tests.unit.server.responses import test_responses as responses
from tests.unit.server.tools.written import written_call

OBJECT = '{"name": "f", "arguments": {}}'
THOUGHT = "<think>Hm.</think>"
HARMONY = "<|channel|>{}<|message|>{}<|end|>"
CALLS = {name: written_call(name, "f", {}) for name in TOOL_PARSERS}
XML = CALLS["qwen3_coder"]
OF_ONE = (
    "glm45",
    "seed_oss",
    "minimax",
    "minimax_m2",
    "deepseek_v32",
    "kimi_k2",
    "gemma4",
    "deepseek_v3",
)
CASES: dict[str, tuple[str, str]] = {
    "hermes": (
        f"{THOUGHT}See.\n<tool_call>{OBJECT}</tool_call>\nSo.<tool_call>{OBJECT}</tool_call>",
        "think text:See. call text:So. call",
    ),
    "granite": (
        f"{THOUGHT}See.<tool_call>[{OBJECT}, {OBJECT}] So.",
        "think text:See. call call text:So.",
    ),
    "llama3_json": (f"{THOUGHT}{OBJECT}; {OBJECT} So.", "think call call text:So."),
    "mistral": (
        f"{THOUGHT}See.[TOOL_CALLS]f{{}} So.[TOOL_CALLS][{OBJECT}]",
        "think text:See. call text:So. call",
    ),
    "qwen3_coder": (f"{THOUGHT}See.\n{XML}\nSo.{XML}", "think text:See. call text:So. call"),
    **{
        name: (f"{THOUGHT}See.\n{CALLS[name]}\nSo.", "think text:See. call text:So.")
        for name in OF_ONE
    },
    "pythonic": (f"{THOUGHT}[f(), f()] So.", "think call call text:So."),
    "openai": (
        "<|channel|>analysis<|message|>Hm.<|end|>"
        + HARMONY.format("commentary", "See.")
        + HARMONY.format("commentary to=functions.f", "{}")
        + HARMONY.format("analysis", "Aha.")
        + "<|channel|>final<|message|>So.",
        "think text:See. call think text:So.",
    ),
}


def test_no_format_is_missing() -> None:
    assert set(CASES) == set(TOOL_PARSERS)


def of_response(body: dict[str, Any]) -> str:
    said = {"reasoning": "think", "function_call": "call"}
    items = body["output"]
    return " ".join(
        f"text:{item['content'][0]['text']}" if item["type"] == "message" else said[item["type"]]
        for item in items
    )


def of_message(body: dict[str, Any]) -> str:
    said = {"thinking": "think", "tool_use": "call"}
    return " ".join(
        f"text:{block['text']}" if block["type"] == "text" else said[block["type"]]
        for block in body["content"]
    )


@pytest.mark.parametrize("name", CASES)
async def test_the_order_is_the_models(name: str) -> None:
    text, expected = CASES[name]
    reasoning = "openai_gptoss" if name == "openai" else "qwen3"
    tool = {"type": "function", "name": "f"}
    options = {
        "tool_call_parser": name,
        "reasoning_parser": reasoning,
        "chat_template": "{{ messages[0].content }}",
    }
    async with saying(text, **options) as app:
        whole = await responses.ask(app, tools=[tool])
        streamed = (await responses.stream(app, tools=[tool]))[-1]["response"]
        assert of_response(whole) == of_response(streamed) == expected
        assert responses.comparable(streamed) == responses.comparable(whole)

        tool = {"name": "f", "input_schema": {"type": "object"}}
        message = await anthropic.ask(app, tools=[tool], max_tokens=240)
        streamed = await anthropic.stream(app, tools=[tool], max_tokens=240)
        assert of_message(message) == of_message(streamed) == expected
        told = [anthropic.without_ids(each)["content"] for each in (message, streamed)]
        assert told[0] == told[1]
