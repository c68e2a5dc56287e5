"""Fields of requests and answers beyond the basic ones, through the official OpenAI client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.e2e.serving import Server

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story."}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "temperature": 0}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "once", "max_tokens": 4, "temperature": 0}


def test_one_fingerprint_in_all_answers(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(**CHAT).system_fingerprint
    assert chat.startswith("fp_")
    found = {chat, client.completions.create(**TEXT).system_fingerprint}
    found |= {c.system_fingerprint for c in client.chat.completions.create(**CHAT, stream=True)}
    found |= {c.system_fingerprint for c in client.completions.create(**TEXT, stream=True)}
    assert found == {chat}


def test_a_request_names_itself(client: openai.OpenAI) -> None:
    answer = client.completions.with_raw_response.create(**TEXT, extra_body={"request_id": "one"})
    assert answer.headers["x-request-id"] == "one"
    assert answer.parse().id == "cmpl-one"
    chat = client.chat.completions.create(**CHAT, extra_body={"request_id": "two"})
    assert chat.id == "chatcmpl-two"
    named = {"extra_headers": {"X-Request-Id": "three"}, "extra_body": {"request_id": "four"}}
    assert client.chat.completions.create(**CHAT, **named).id == "chatcmpl-three"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT, extra_body={"request_id": "a b"})
    assert caught.value.param == "request_id"


def test_log_probabilities_of_tokens_asked_for_by_id(client: openai.OpenAI) -> None:
    named = [7, 250, 3]
    extra = {"logprob_token_ids": named, "return_tokens_as_token_ids": True}
    names = [f"token_id:{token}" for token in named]
    chat = client.chat.completions.create(
        **CHAT, logprobs=True, top_logprobs=1, extra_body=extra
    ).choices[0]
    plain = client.chat.completions.create(**CHAT, logprobs=True).choices[0]
    assert chat.message.content == plain.message.content
    for token, bare in zip(chat.logprobs.content or (), plain.logprobs.content or (), strict=True):
        assert token.logprob == bare.logprob
        assert [each.token for each in token.top_logprobs[1:]] == names
        assert all(each.logprob < token.logprob for each in token.top_logprobs[1:])
    whole = client.completions.create(**TEXT, extra_body=extra).choices[0].logprobs
    tops = [
        top
        for chunk in client.completions.create(**TEXT, extra_body=extra, stream=True)
        if chunk.choices[0].logprobs
        for top in chunk.choices[0].logprobs.top_logprobs or ()
    ]
    assert tops == whole.top_logprobs
    assert all(set(top) >= set(names) for top in tops)
    every = list(range(240, 258)) + named
    first = (
        client.completions.create(
            **TEXT, extra_body={**extra, "logprob_token_ids": every}, logprobs=0
        )
        .choices[0]
        .logprobs
    )
    assert first.top_logprobs is not None
    assert {name: first.top_logprobs[0][name] for name in names} == {
        name: tops[0][name] for name in names
    }


def test_tokens_are_named_by_their_ids(client: openai.OpenAI) -> None:
    asked = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    chat = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2, extra_body=asked)
    [choice] = chat.choices
    names = [token.token for token in choice.logprobs.content]
    assert names == [f"token_id:{token}" for token in choice.token_ids]  # type: ignore[attr-defined]
    assert choice.logprobs.content[0].top_logprobs[0].token == names[0]
    text = client.completions.create(**TEXT, logprobs=1, echo=True, extra_body=asked).choices[0]
    assert text.logprobs.tokens is not None
    ids = text.prompt_token_ids + text.token_ids  # type: ignore[attr-defined]
    assert text.logprobs.tokens == [f"token_id:{token}" for token in ids]
    assert text.logprobs.text_offset[:5] == [0, 1, 2, 3, 4]


def test_a_long_prompt_is_truncated(client: openai.OpenAI) -> None:
    def prompt(**asked: Any) -> tuple[str, int]:
        long = {**TEXT, "prompt": "a" * 400 + "b" * 400}
        answer = client.completions.create(**long, echo=True, extra_body=asked)
        count = answer.usage.prompt_tokens
        return answer.choices[0].text[:count], count

    assert prompt(truncate_prompt_tokens=3) == ("bbb", 3)
    assert prompt(truncate_prompt_tokens=3, truncation_side="right") == ("aaa", 3)
    assert prompt(truncate_prompt_tokens=-1) == ("a" * 108 + "b" * 400, 508)
    assert prompt(truncate_prompt_tokens=-1, max_tokens=512)[1] == 512 - 512 // 4
    for wrong in (0, -2, 512, 10**6):
        with pytest.raises(openai.BadRequestError) as caught:
            prompt(truncate_prompt_tokens=wrong)
        assert caught.value.param == "truncate_prompt_tokens"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512") as caught:
        client.completions.create(
            **{**TEXT, "prompt": "a" * 200_000}, extra_body={"truncate_prompt_tokens": 3}
        )
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512") as caught:
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "a" * 200_000}],
            extra_body={"truncate_prompt_tokens": 3},
        )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    long: list[Any] = [{"role": "user", "content": "a" * 2000}]
    chat = client.chat.completions.create(
        **{**CHAT, "messages": long}, extra_body={"truncate_prompt_tokens": 20}
    )
    assert chat.usage.prompt_tokens == 20


def test_tokens_are_counted_up_to_a_length(server: Server) -> None:
    """Also of texts that no request could have, but not of any length."""

    def asked(**body: Any) -> httpx.Response:
        return server.http.post("/tokenize", json=body)

    def chat(text: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": text}]

    assert asked(prompt="a" * 100_000).json()["count"] == 100_000
    assert asked(messages=chat("a" * 100_000)).json()["count"] > 100_000
    for body in ({"prompt": "a" * 2**22}, {"messages": chat("a" * 2**22)}):
        refused = asked(**body)
        assert refused.status_code == 400, body.keys()
        error = refused.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["param"] in body


def test_special_tokens_around_a_conversation(server: Server) -> None:
    def tokens(**asked: Any) -> list[int]:
        body = {"messages": MESSAGES, **asked}
        found: list[int] = server.http.post("/tokenize", json=body).json()["tokens"]
        return found

    plain = tokens()
    info = server.http.get("/tokenizer_info").json()
    assert info["vocab_size"] == 258
    assert info["special_tokens"]["eos_token"] == info["eos_token"] == "<|end|>"
    assert info["bos_token"] == "<|begin|>"
    assert "messages" in info["chat_template"]
    assert tokens(add_special_tokens=False) == plain
    assert tokens(add_special_tokens=True) == plain  # this tokenizer puts none around a text
