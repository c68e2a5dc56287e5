"""A limit of the reasoning's tokens through the official clients, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.serving import Server, serving

BUDGET = 5
THINKING: list[Any] = [
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "<think>"},
]
GOES_ON = {"add_generation_prompt": False, "continue_final_message": True}
LIMITED = {**GOES_ON, "thinking_token_budget": BUDGET}


@pytest.fixture(scope="module")
def thinker(tiny_model: Path) -> Iterator[Server]:
    # Small steps and a small cache: prompts come in chunks, and sequences are preempted.
    flags = (
        "--max-num-batched-tokens", "32", "--max-num-seqs", "8", "--num-gpu-blocks-override", "32"
    )  # fmt: skip
    with serving(tiny_model, "--reasoning-parser", "qwen3", *flags) as running:
        yield running


@pytest.fixture
def client(thinker: Server) -> Iterator[openai.OpenAI]:
    with thinker.openai_client() as client:
        yield client


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    known = {"model": "tiny", "messages": THINKING, "max_tokens": 40, "temperature": 0}
    return client.chat.completions.create(**{**known, "extra_body": LIMITED, **fields})


def test_the_reasoning_ends_and_the_answer_begins(client: openai.OpenAI) -> None:
    free = chat(client, extra_body=GOES_ON).choices[0].message
    assert len(free.reasoning) > BUDGET
    assert not free.content
    answer = chat(client)
    message = answer.choices[0].message
    assert message.content
    assert answer.usage.completion_tokens_details.reasoning_tokens <= BUDGET
    assert free.reasoning.startswith(message.reasoning.rstrip("\ufffd"))


def test_a_stream_has_the_same(client: openai.OpenAI) -> None:
    whole = chat(client).choices[0].message
    content = reasoning = ""
    for chunk in chat(client, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += getattr(delta, "reasoning", None) or ""
    assert (content, reasoning) == (whole.content, whole.reasoning)


def test_each_sequence_has_its_own_limit_in_any_company(client: openai.OpenAI) -> None:
    def ask(number: int) -> tuple[tuple[int, ...], ...]:
        limit = {"thinking_token_budget": number, "return_token_ids": True}
        answer = client.completions.create(
            model="tiny", prompt="Why?" * 9 + "<think>", max_tokens=60, n=3, seed=number,
            extra_body={**limit, "ignore_eos": True},
        )  # fmt: skip
        return tuple(tuple(choice.token_ids) for choice in answer.choices)  # type: ignore[attr-defined]

    alone = [ask(number) for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(ask, range(6))) == alone
    assert len(set(alone[3])) == 3


def test_the_schema_holds_behind_it(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    answer = chat(
        client,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        extra_body={**LIMITED, "thinking_token_budget": 0},
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"a"}
    assert not getattr(answer.choices[0].message, "reasoning", None)


def test_budget_tokens_of_messages(thinker: Server) -> None:
    import anthropic  # takes seconds

    with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0) as client:

        def ask(**fields: Any) -> dict[str, str]:
            known = {"model": "tiny", "messages": THINKING, "max_tokens": 40}
            extra = {"temperature": 0}
            answer = client.messages.create(**known, **fields, extra_body=extra)
            assert "warnings" not in (answer.model_extra or {})
            return {block.type: getattr(block, block.type) for block in answer.content}

        assert set(ask(thinking={"type": "enabled", "budget_tokens": BUDGET})) == {
            "thinking", "text",
        }  # fmt: skip
        assert set(ask(thinking={"type": "adaptive"})) == {"thinking"}
        with pytest.raises(anthropic.BadRequestError, match=r"thinking.budget_tokens"):
            ask(thinking={"type": "enabled", "budget_tokens": -7})
