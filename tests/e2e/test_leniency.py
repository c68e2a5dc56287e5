"""What cannot change an answer is accepted and reported: OpenAI's and Anthropic's clients."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.e2e.serving import Server

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story."}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "once", "max_tokens": 6, "temperature": 0}
LONG = "a story " * 2000


@pytest.fixture
def context(client: openai.OpenAI) -> int:
    [model] = client.models.list().data
    return int(model.model_extra["max_model_len"])  # type: ignore[index]


def warned(answer: Any) -> dict[str, str]:
    """Messages of the warnings in an answer, by field."""
    return {
        each["param"]: each["message"] for each in (answer.model_extra or {}).get("warnings", [])
    }


def ignored(server: Server, endpoint: str) -> float:
    """How many fields the server has ignored."""
    lines = server.http.get("/metrics").text.splitlines()
    name, label = "quire:ignored_fields_total{", f'endpoint="{endpoint}"'
    return sum(float(li.split()[-1]) for li in lines if li.startswith(name) and label in li)


def test_fields_without_effect(server: Server, client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(**CHAT)
    assert warned(plain) == {}
    before = ignored(server, "/v1/chat/completions")
    echoed = {**MESSAGES[0], "cache_control": {"type": "ephemeral"}, "id": "m1"}
    answer = client.chat.completions.create(
        **CHAT | {"messages": [echoed]},
        store=True,
        metadata={"a": "b"},
        verbosity="low",
        user="me",
        service_tier="flex",
        prediction={"type": "content", "content": "Once"},
        modalities=["text"],
        logit_bias={},
        functions=[],
        web_search_options={},
        extra_body={
            "prompt_cache_retention": "24h", "use_beam_search": False, "length_penalty": 1.0,
            "mirostat": 0, "xtc_probability": 0, "typical_p": 1, "unheard_of": {"x": [1]},
        },
    )  # fmt: skip
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert set(warned(answer)) == {
        "store", "metadata", "verbosity", "user", "service_tier", "prediction", "modalities",
        "web_search_options", "prompt_cache_retention", "use_beam_search",
        "length_penalty", "mirostat", "xtc_probability", "typical_p", "unheard_of",
        "messages[0].cache_control", "messages[0].id",
    }  # fmt: skip
    assert ignored(server, "/v1/chat/completions") == before + len(warned(answer))


def test_streams_tell_them_first(client: openai.OpenAI) -> None:
    for first, *others in (
        list(client.chat.completions.create(**CHAT, stream=True, user="me")),
        list(client.completions.create(**TEXT, stream=True, user="me", suffix="")),
    ):
        assert "user" in warned(first)
        assert not any(map(warned, others))


def test_completions_and_responses(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        **TEXT, best_of=1, suffix="", extra_body={"stream_options": {"include_usage": True}}
    )
    assert set(warned(answer)) == {"stream_options"}
    made = client.responses.create(
        model="tiny", input=[{**MESSAGES[0], "unheard_of": 1}], max_output_tokens=6
    )
    assert set(warned(made)) == {"input[0].unheard_of"}


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"use_beam_search": True, "stream": True}, "stream", "not streamed"),
        ({"mirostat": 2}, "mirostat", "compatibility.md"),
        ({"xtc_probability": 0.5}, "xtc_probability", "compatibility.md"),
        ({"repeat_penalty": 1.3}, "repeat_penalty", "repetition_penalty"),
        ({"thinking_token_budget": 9}, "thinking_token_budget", "--reasoning-parser"),
        ({"logprob_token_ids": [258]}, "logprob_token_ids", "ends at 257"),
        ({"temprature": 0.3}, "temprature", "did you mean temperature"),
        ({"maxTokens": 3}, "maxTokens", "did you mean max_tokens"),
    ],
)
def test_what_would_change_the_answer(
    client: openai.OpenAI, fields: dict[str, Any], param: str, word: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=word) as caught:
        client.chat.completions.create(**CHAT, extra_body=fields)
    assert caught.value.param == param


def test_max_tokens_are_held_to_the_context(client: openai.OpenAI, context: int) -> None:
    most = {**CHAT, "max_tokens": context, "extra_body": {"ignore_eos": True}}
    answer = client.chat.completions.create(**most)
    assert answer.usage.total_tokens == context
    assert answer.choices[0].finish_reason == "length"
    [(param, message)] = warned(answer).items()
    assert param == "max_tokens"
    assert message.startswith(f"It is {answer.usage.completion_tokens} instead of {context}")

    stream = client.completions.create(**{**TEXT, "max_tokens": context}, stream=True)
    first = next(iter(stream))
    stream.close()
    assert warned(first)["max_tokens"].startswith(f"It is {context - 4} instead")

    made = client.responses.create(model="tiny", input="Hi", max_output_tokens=100 * context)
    assert set(warned(made)) == {"max_output_tokens"}


def test_a_context_that_is_too_short(client: openai.OpenAI, context: int) -> None:
    def refusal(ask: Any, **fields: Any) -> openai.BadRequestError:
        with pytest.raises(openai.BadRequestError) as caught:
            ask(model="tiny", **fields)
        assert caught.value.code == "context_length_exceeded"
        assert f"maximum context length is {context} tokens" in caught.value.message
        return caught.value

    long: list[Any] = [{"role": "user", "content": LONG}]
    assert refusal(client.chat.completions.create, messages=long).param == "messages"
    assert refusal(client.completions.create, prompt=LONG).param == "prompt"
    assert refusal(client.completions.create, prompt=[5] * context).param == "prompt"
    assert refusal(client.responses.create, input=LONG).param == "input"


def test_anthropics_words_for_it(server: Server, context: int) -> None:
    import anthropic  # takes seconds

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens >"):
            client.messages.create(
                model="tiny", max_tokens=5, messages=[{"role": "user", "content": LONG}]
            )
        answer = client.messages.create(model="tiny", max_tokens=context, messages=MESSAGES)
        assert set(warned(answer)) == {"max_tokens"}
