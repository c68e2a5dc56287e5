"""POST /v1/completions over the real front end and a model that spells the alphabet."""

import base64
import io
from dataclasses import replace
from typing import Any

import pytest

from quire.server.errors import ApiError
from quire.server.openai.completions import split_prompts
from quire.text.tokenizers.dummy import DummyTokenizer
from tests.unit.server.fake_engine import Running, running
from tests.unit.server.sse import events


async def test_answers_with_usage(app: Running) -> None:
    response = await app.complete()
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["model"] == "echo"
    assert body["id"] == f"cmpl-{response.headers['x-request-id']}"
    [choice] = body["choices"]
    assert choice["text"] == "bcd"
    assert choice["finish_reason"] == "length"
    assert body["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 3,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    for name in ("prompt_logprobs", "prompt_token_ids", "token_ids", "logprobs"):
        assert choice[name] is None


async def test_cached_tokens_are_counted(app: Running) -> None:
    prompt = "abcdefghijklmnop" * 2
    await app.complete(prompt=prompt)
    again = (await app.complete(prompt=prompt)).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 24
    salted = (await app.complete(prompt=prompt, cache_salt="x")).json()
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("prompt", ["w", [119]])
async def test_end_of_sequence_is_no_text(prompt: object, app: Running) -> None:
    [choice] = (await app.complete(prompt=prompt, max_tokens=9)).json()["choices"]
    assert choice["text"] == "xyz"
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None


async def test_stop_string_and_stop_token(app: Running) -> None:
    [choice] = (await app.complete(max_tokens=9, stop=["ef"])).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("bcd", "ef")
    [choice] = (await app.complete(max_tokens=9, stop_token_ids=[100])).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("bc", 100)


async def test_many_prompts_and_n_are_numbered_in_order(app: Running) -> None:
    body = (await app.complete(prompt=["a", "k"], n=2)).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in body["choices"]] == ["bcd", "bcd", "lmn", "lmn"]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 12
    body = (await app.complete(prompt=[[97], [107]])).json()
    assert [c["text"] for c in body["choices"]] == ["bcd", "lmn"]


async def test_logprobs_and_echo(app: Running) -> None:
    [choice] = (await app.complete(prompt="xa", logprobs=2, echo=True)).json()["choices"]
    assert choice["text"] == "xabcd"
    found = choice["logprobs"]
    assert found["tokens"] == list("xabcd")
    assert found["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
    assert found["text_offset"] == [0, 1, 2, 3, 4]
    assert found["top_logprobs"][:2] == [None, {"a": -0.5, "!": -2.0}]
    [choice] = (await app.complete(logprobs=0, max_tokens=1)).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"b": -0.5}]
    assert choice["logprobs"]["text_offset"] == [0]


async def test_a_prompt_is_echoed_alone(app: Running) -> None:
    """As evaluations ask for the likelihood of a text."""
    fields: dict[str, Any] = {"prompt": ["xa", "k"], "echo": True, "max_tokens": 0, "logprobs": 1}
    body = (await app.complete(**fields)).json()
    assert [choice["text"] for choice in body["choices"]] == ["xa", "k"]
    assert [c["logprobs"]["tokens"] for c in body["choices"]] == [["x", "a"], ["k"]]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 0)
    streamed = {}
    for chunk in events((await app.complete(**fields, stream=True)).text):
        [choice] = chunk["choices"]
        streamed[choice["index"]] = choice
    assert [streamed[i] for i in range(2)] == body["choices"]
    plain = (await app.complete(prompt="xa", echo=True, max_tokens=0)).json()["choices"][0]
    assert (plain["text"], plain["logprobs"]) == ("xa", None)
    assert (await app.complete(prompt="xa", max_tokens=0)).status_code == 400


async def test_echo_of_token_ids_is_their_text(app: Running) -> None:
    [choice] = (await app.complete(prompt=[120, 97], echo=True)).json()["choices"]
    assert choice["text"] == "xabcd"
    assert choice["logprobs"] is None


async def test_prompt_logprobs_as_in_vllm(app: Running) -> None:
    [choice] = (await app.complete(prompt="xa", prompt_logprobs=1)).json()["choices"]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert second["97"] == {"logprob": -0.5, "rank": 1, "decoded_token": "a"}


async def test_a_stream_tells_of_the_prompt_before_there_is_text(app: Running) -> None:
    """The first token may begin the stop string, and is held back."""
    fields = {"prompt": ["xa", "a"], "prompt_logprobs": 1, "stop": "bd", "n": 2}
    whole = (await app.complete(**fields)).json()["choices"]
    pieces = events((await app.complete(**fields, stream=True)).text)
    told = [choice for piece in pieces for choice in piece["choices"]]
    for choice in whole:
        [positions] = [
            part["prompt_logprobs"]
            for part in told
            if part["index"] == choice["index"] and part["prompt_logprobs"]
        ]
        assert positions == choice["prompt_logprobs"]
    assert whole[2]["prompt_logprobs"] == [None]


async def test_stream_says_the_same() -> None:
    async with running(seconds=0.001) as app:
        fields = {"n": 2, "echo": True, "logprobs": 1, "prompt": ["xa", "k"]}
        whole = (await app.complete(**fields)).json()
        options = {"include_usage": True}
        response = await app.complete(**fields, stream=True, stream_options=options)
        assert response.headers["content-type"].startswith("text/event-stream")
        *pieces, last = events(response.text)
        assert {piece["id"] for piece in [*pieces, last]} == {last["id"]}
        assert all(piece["usage"] is None for piece in pieces)
        assert last["choices"] == []
        assert {**last["usage"], "prompt_tokens_details": None} == {
            **whole["usage"],
            "prompt_tokens_details": None,
        }
        for choice in whole["choices"]:
            mine = [c for p in pieces for c in p["choices"] if c["index"] == choice["index"]]
            assert "".join(c["text"] for c in mine) == choice["text"]
            assert mine[-1]["finish_reason"] == choice["finish_reason"]
            for name, values in choice["logprobs"].items():
                assert [v for c in mine for v in c["logprobs"][name]] == values


async def test_a_stream_counts_as_it_goes() -> None:
    async with running(seconds=0.001) as app:
        options = {"include_usage": True, "continuous_usage_stats": True}
        response = await app.complete(prompt=["a", "b"], stream=True, stream_options=options)
        counts = [piece["usage"]["completion_tokens"] for piece in events(response.text)]
        whole = (await app.complete(prompt=["a", "b"])).json()["usage"]
        assert counts == sorted(counts)
        assert len(set(counts)) > 1
        assert counts[-1] == whole["completion_tokens"]


async def test_stream_without_usage_does_not_mention_it(app: Running) -> None:
    pieces = events((await app.complete(stream=True)).text)
    assert all("usage" not in piece for piece in pieces)


async def test_an_error_before_the_first_event_is_a_status(app: Running) -> None:
    response = await app.complete(stream=True, prompt=[300])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


async def test_an_error_in_a_stream_is_an_event() -> None:
    async with running(seconds=0.005) as app:
        # The second prompt fails while the first is under way, or before; both end then.
        response = await app.complete(prompt=[[97], [7]], stream=True, ignore_eos=True)
        if response.status_code == 200:
            assert events(response.text)[-1]["error"]["code"] == "request_failed"
        else:
            assert response.status_code == 500
        assert app.engine.num_unfinished == 0
        assert (await app.complete()).json()["choices"][0]["text"] == "bcd"


@pytest.mark.parametrize("prompt", [[7], [8]])
async def test_a_failed_request_tells_no_secret(prompt: list[int], app: Running) -> None:
    response = await app.complete(prompt=prompt)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "request_failed"
    assert "secret" not in response.text
    assert "0x" not in response.text


async def test_unset_values_come_from_the_model() -> None:
    async with running(generation_config={"temperature": 0.3, "top_k": 7}) as app:
        assert (await app.complete(temperature=None, top_p=0.9)).status_code == 200
        executor = app.core.executor
        [params] = executor.params.values()  # type: ignore[attr-defined]
        assert (params.temperature, params.top_k, params.top_p) == (0.3, 7, 0.9)


async def test_priority_and_sampling_fields_arrive(app: Running) -> None:
    fields = {
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "logit_bias": {"98": 5},
        "allowed_token_ids": [98, 99],
        "bad_words": ["zz"],
        "seed": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    answer = await app.complete(**fields, priority=1, user="me")
    warned = [each["param"] for each in answer.json()["warnings"]]
    assert warned == ["user", "priority"]  # the policy is fcfs
    [params] = app.core.executor.params.values()  # type: ignore[attr-defined]
    expected = {**fields, "logit_bias": {98: 5.0}}
    assert {name: getattr(params, name) for name in expected} == expected


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]], [["a"]]])
async def test_wrong_prompts_are_named(prompt: object, app: Running) -> None:
    response = await app.complete(prompt=prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prompt")


async def test_too_many_sequences(app: Running) -> None:
    response = await app.complete(prompt=["a"] * 100, n=100)
    assert response.status_code == 400
    assert "10000" in response.json()["error"]["message"]


def test_split_prompts() -> None:
    assert split_prompts("a") == ["a"]
    assert split_prompts([1, 2]) == [{"prompt_token_ids": [1, 2]}]
    assert split_prompts(["a", ""]) == ["a", ""]
    assert split_prompts([[1], []]) == [{"prompt_token_ids": [1]}, {"prompt_token_ids": []}]
    with pytest.raises(ApiError):
        split_prompts([])


async def test_token_ids_are_told() -> None:
    async with running(seconds=0.001) as app:
        [choice] = (await app.complete(prompt="xa", return_token_ids=True)).json()["choices"]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == ([120, 97], [98, 99, 100])
        response = await app.complete(prompt="xa", return_token_ids=True, stream=True)
        choices = [event["choices"][0] for event in events(response.text)]
        assert [c["prompt_token_ids"] for c in choices if c["prompt_token_ids"]] == [[120, 97]]
        assert [token for c in choices for token in c["token_ids"]] == [98, 99, 100]
        plain = (await app.complete()).json()["choices"][0]
        assert plain["token_ids"] is plain["prompt_token_ids"] is None


async def test_a_prompt_as_embeddings() -> None:
    import torch

    def file(*shape: int, stored: tuple[int, ...] | None = None) -> str:
        out = io.BytesIO()
        torch.save(torch.zeros(stored or shape).expand(shape), out)
        return base64.b64encode(out.getvalue()).decode()

    async with running() as app:
        refused = await app.complete(prompt="", prompt_embeds=file(3, 8))
        assert "--enable-prompt-embeds" in refused.json()["error"]["message"]
        processor = app.engine._intake.processor
        processor.config = replace(processor.config, enable_prompt_embeds=True)
        body = (await app.complete(prompt="", prompt_embeds=[file(3, 8), file(5, 8)])).json()
        # The model without weights goes on from the last token, which is none.
        assert [c["text"] for c in body["choices"]] == ["\0\x01\x02"] * 2
        assert body["usage"]["prompt_tokens"] == 8
        fields: dict[str, Any]
        for fields, param in (
            ({"prompt": None}, "prompt"),
            ({"prompt_embeds": file(3, 8)}, "prompt_embeds"),
            ({"prompt": "", "prompt_embeds": []}, "prompt_embeds"),
            ({"prompt": "", "prompt_embeds": "!"}, "prompt_embeds"),
            ({"prompt": "", "prompt_embeds": "AAAA"}, "prompt_embeds"),
            ({"prompt": "", "prompt_embeds": file(3, 9)}, "prompt_embeds"),
            ({"prompt": "", "prompt_embeds": file(3, 8, stored=(1, 1))}, "prompt_embeds"),
            ({"prompt": "", "prompt_embeds": file(3, 8), "echo": True}, "echo"),
        ):
            response = await app.complete(**fields)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param


async def test_texts_without_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(self: DummyTokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + list(text.encode())

    monkeypatch.setattr(DummyTokenizer, "encode", encode)
    async with running() as app:

        async def prompts(**fields: Any) -> list[list[int]]:
            answer = (await app.complete(**fields, return_token_ids=True)).json()
            return [choice["prompt_token_ids"] for choice in answer["choices"]]

        assert await prompts(add_special_tokens=True) == [[1, 97]] == await prompts()
        assert await prompts(add_special_tokens=False, prompt=["a", "b"]) == [[97], [98]]
        assert await prompts(add_special_tokens=False, prompt=[97, 98]) == [[97, 98]]
