"""Requests with one field at its limit or beyond it, for the tests and benchmarks/loop_turns.py."""

from __future__ import annotations

from typing import Any

from quire.core import sampling_params as limits
from quire.server.counts import MOST
from quire.server.rules import MAX_MESSAGES, MAX_SEQUENCES, MAX_TOOLS
from tests.faults.test_connections import Site

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "a", "max_tokens": 3, "temperature": 0, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": messages(1), "max_tokens": 3, **fields}


def messages(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "a"}] * count


def parts(count: int, kind: str = "text") -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": kind, "text": "a"}] * count}]


def tools(count: int) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}}
        for i in range(count)
    ]


def strings(count: int, length: int) -> list[str]:
    return [f"{number:0{length}}" for number in range(count)]


def called(count: int) -> list[dict[str, Any]]:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    return [{"role": "assistant", "tool_calls": [call] * count}, *messages(1)]


WIDE = MOST["bytes of strings that are not ASCII"]
ANTHROPIC = {"model": "echo", "max_tokens": 3}
STOPS = strings(limits.MAX_STOP_STRINGS, limits.MAX_STOP_STRING_LENGTH)
WORDS = strings(limits.MAX_BAD_WORDS, limits.MAX_BAD_WORD_CHARACTERS // limits.MAX_BAD_WORDS)
BIAS = {str(token): 1.0 for token in range(limits.MAX_LOGIT_BIAS)}
FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "stop": (COMPLETIONS, completion(stop=STOPS, n=128)),
    "stop_token_ids": (
        COMPLETIONS,
        completion(stop_token_ids=[97] * limits.MAX_STOP_TOKEN_IDS, n=128),
    ),
    "logprob_token_ids": (
        COMPLETIONS,
        completion(logprob_token_ids=[97] * limits.MAX_LOGPROB_TOKEN_IDS, n=20),
    ),
    "logit_bias": (COMPLETIONS, completion(logit_bias=BIAS, n=128)),
    "bad_words": (COMPLETIONS, completion(bad_words=WORDS, n=4)),
    "bad_words of many prompts": (
        COMPLETIONS,
        completion(bad_words=WORDS[: limits.MAX_BAD_WORDS // 16], prompt=["a"] * 16, n=2),
    ),
    "allowed_token_ids": (
        COMPLETIONS,
        completion(allowed_token_ids=[98] * (MOST["values"] - 10), n=16),
    ),
    "prompts": (COMPLETIONS, completion(prompt=["a"] * MAX_SEQUENCES, max_tokens=1)),
    "prompts of token ids": (COMPLETIONS, completion(prompt=[[97]] * MAX_SEQUENCES, max_tokens=1)),
    "token ids": (COMPLETIONS, completion(prompt=[97] * (MOST["values"] - 10))),
    "token ids and an unknown field": (
        COMPLETIONS,
        completion(prompt=[97] * (MOST["values"] - 11), unknown=1),
    ),
    "text": (COMPLETIONS, completion(prompt="a" * (30 * 2**20))),
    "text that is not ASCII": (COMPLETIONS, completion(prompt="ü" * (WIDE // 2))),
    "choices": (COMPLETIONS, completion(guided_choice=strings(30_000, 6))),
    "messages": (CHAT, chat(messages=messages(MAX_MESSAGES))),
    "unknown fields": (
        CHAT,
        chat(messages=[message | {"unknown": 1} for message in messages(MAX_MESSAGES)]),
    ),
    "parts": (CHAT, chat(messages=parts(MAX_MESSAGES))),
    "tools": (CHAT, chat(tools=tools(MAX_TOOLS), tool_choice="required")),
    "tool calls": (CHAT, chat(messages=called(MAX_TOOLS))),
    "template kwargs": (
        CHAT,
        chat(chat_template_kwargs={"a": [[1]] * (MOST["objects and arrays"] - 20)}),
    ),
    "schema": (CHAT, chat(guided_json={"enum": strings(30_000, 6)})),
    "blocks": (MESSAGES, {**ANTHROPIC, "messages": parts(MAX_MESSAGES)}),
    "Anthropic's messages": (MESSAGES, {**ANTHROPIC, "messages": messages(MAX_MESSAGES)}),
    "stop_sequences": (MESSAGES, {**ANTHROPIC, "messages": messages(1), "stop_sequences": STOPS}),
    "input": (RESPONSES, {"input": messages(MAX_MESSAGES), "max_output_tokens": 3}),
    "input parts": (
        RESPONSES,
        {"input": parts(MAX_MESSAGES, "input_text"), "max_output_tokens": 3},
    ),
    "conversation": ("/tokenize", {"messages": messages(MAX_MESSAGES)}),
    "tokens": ("/detokenize", {"tokens": [97] * (MOST["values"] - 10)}),
    "embedded texts": ("/v1/embeddings", {"input": ["a"] * MAX_SEQUENCES}),
    "embedded token ids": ("/v1/embeddings", {"input": [97] * (MOST["values"] - 10)}),
    "text_2": ("/score", {"text_1": "a", "text_2": ["a"] * MAX_SEQUENCES}),
    "documents": ("/rerank", {"query": "a", "documents": ["a"] * MAX_SEQUENCES}),
}

BEYOND: dict[str, tuple[str, dict[str, Any], str]] = {
    "messages": (CHAT, chat(messages=messages(MAX_MESSAGES + 1)), "messages"),
    "parts": (CHAT, chat(messages=parts(MAX_MESSAGES + 1)), "messages[0].content"),
    "tools": (CHAT, chat(tools=tools(MAX_TOOLS + 1)), "tools"),
    "tool calls": (CHAT, chat(messages=called(MAX_TOOLS + 1)), "messages[0].tool_calls"),
    "prompts": (COMPLETIONS, completion(prompt=["a"] * (MAX_SEQUENCES + 1)), "prompt"),
    "bad_words": (COMPLETIONS, completion(bad_words=["a"] * 20_000), "bad_words"),
    "stop": (COMPLETIONS, completion(stop=["a"] * 20_000), "stop"),
    "logit_bias": (
        COMPLETIONS,
        completion(logit_bias={str(i): 1 for i in range(limits.MAX_LOGIT_BIAS + 1)}),
        "logit_bias",
    ),
    "input": (RESPONSES, {"input": messages(MAX_MESSAGES + 1)}, "input"),
    "blocks": (RESPONSES, {"input": parts(MAX_MESSAGES + 1, "input_text")}, "input[0].content"),
    "text_2": ("/score", {"text_1": "a", "text_2": ["a"] * (MAX_SEQUENCES + 1)}, "text_2"),
    "documents": ("/rerank", {"query": "a", "documents": ["a"] * (MAX_SEQUENCES + 1)}, "documents"),
}


async def ask(where: Site, path: str, body: bytes) -> int:
    """Send `body`; the answer's status."""
    client = await where.connect()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    await client.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
    for start in range(0, len(body), 2**16):
        await client.send(body[start : start + 2**16])
    answer = await client.answer()
    client.close()
    return int(answer.split()[1])
