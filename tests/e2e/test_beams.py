"""Beam search and best_of through the official OpenAI client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from quire import LLM, BeamSearchParams
from tests.e2e.serving import Server

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story."}]
BEAMS = {"use_beam_search": True, "return_token_ids": True}


def test_a_search_finds_what_the_python_package_does(
    client: openai.OpenAI, tiny_model: Path
) -> None:
    def ask(**extra: Any) -> Any:
        return client.completions.create(
            model="tiny", prompt=["once", "upon"], n=2, max_tokens=5, best_of=4,
            extra_body={**BEAMS, **extra},
        )  # fmt: skip

    plain, longer = ask(), ask(length_penalty=2.0, ignore_eos=True)
    with LLM(str(tiny_model), num_gpu_blocks_override=64) as llm:
        for answer, fields in (
            (plain, {}),
            (longer, {"length_penalty": 2.0, "ignore_eos": True}),
        ):
            params = BeamSearchParams(beam_width=4, max_tokens=5, **fields)  # type: ignore[arg-type]
            expected = [
                sequence.tokens[4:]
                for output in llm.beam_search(["once", "upon"], params)
                for sequence in output.sequences[:2]
            ]
            assert [choice.token_ids for choice in answer.choices] == expected
    assert [choice.index for choice in plain.choices] == [0, 1, 2, 3]
    assert plain.usage.completion_tokens == sum(len(c.token_ids) for c in plain.choices)


def test_a_chat_is_searched(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5}
    answer = client.chat.completions.create(**asked, n=3, extra_body=BEAMS)
    greedy = client.chat.completions.create(**asked, temperature=0, extra_body=BEAMS)
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.choices[0].finish_reason == "length"
    assert greedy.choices[0].message.content


def test_a_limit_beyond_the_context_ends_there(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="a" * 508, max_tokens=9, extra_body={**BEAMS, "ignore_eos": True}
    )
    assert len(answer.choices[0].token_ids) == 4  # type: ignore[attr-defined]
    assert (answer.model_extra or {})["warnings"][0]["param"] == "max_tokens"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a" * 600, extra_body=BEAMS)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"top_p": 0.5}, "top_p"),
        ({"stop": "a"}, "stop"),
        ({"logprobs": 1}, "logprobs"),
        ({"n": 11}, "n"),
        ({"best_of": 11}, "best_of"),
        ({"length_penalty": 99}, "length_penalty"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": False, "n": 3, "best_of": 2}, "best_of"),
        ({"use_beam_search": False, "best_of": 2, "stream": True}, "stream"),
        ({"use_beam_search": False, "best_of": 129}, "best_of"),
    ],
)
def test_what_does_not_go_together_is_named(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    answer = server.complete(**{**BEAMS, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_search_ends_when_its_client_leaves(server: Server) -> None:
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(
            "/v1/completions",
            json={"prompt": "once", "max_tokens": 500, "n": 10, "ignore_eos": True, **BEAMS},
            timeout=httpx.Timeout(60, read=0.5),
        )
    server.wait_until_idle()
    steps = server.metric("iteration_tokens_total_count")
    assert server.text()  # others are served
    assert server.metric("iteration_tokens_total_count") - steps < 100


def test_best_of_returns_the_likeliest(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "prompt": ["once", "upon"],
        "max_tokens": 6,
        "seed": 7,
        "extra_body": {"ignore_eos": True},
    }
    every = client.completions.create(**asked, n=5, logprobs=0).choices
    best = client.completions.create(**asked, n=2, best_of=5)
    for prompt in range(2):
        own = every[5 * prompt : 5 * prompt + 5]
        own.sort(key=lambda choice: -sum(choice.logprobs.token_logprobs))  # type: ignore[union-attr, arg-type]
        found = best.choices[2 * prompt : 2 * prompt + 2]
        assert [choice.text for choice in found] == [choice.text for choice in own[:2]]
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    assert best.choices[0].logprobs is None
    assert best.usage.completion_tokens == 60
