"""The official OpenAI client, unchanged, against a real server."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest

from tests.e2e.serving import Server

MESSAGES = [{"role": "user", "content": "Tell me a story."}]


def test_lists_models(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").owned_by == "quire"


def test_completes(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="once", max_tokens=5, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == 4
    assert answer.usage.completion_tokens == 5


def test_chats_and_streams_the_same(client: openai.OpenAI) -> None:
    fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    assert whole.choices[0].message.role == "assistant"
    stream = client.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_n_with_seed(client: openai.OpenAI) -> None:
    def answers() -> list[str | None]:
        answer = client.chat.completions.create(
            model="tiny", messages=MESSAGES, n=2, seed=7, temperature=1, max_tokens=12
        )
        assert [c.index for c in answer.choices] == [0, 1]
        return [c.message.content for c in answer.choices]

    first = answers()
    assert first[0] != first[1]
    assert answers() == first


def test_reads_logprobs(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=3, max_tokens=4, temperature=0
    )
    content = chat.choices[0].logprobs.content
    assert content
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob  # greedy takes the likeliest
        assert token.logprob <= 0
        assert token.bytes is not None
    answer = client.completions.create(
        model="tiny", prompt="once", logprobs=2, echo=True, max_tokens=2, temperature=0
    )
    found = answer.choices[0].logprobs
    assert found.tokens[:4] == list("once")
    assert found.token_logprobs[0] is None
    assert all(p is not None and math.isfinite(p) and p <= 0 for p in found.token_logprobs[1:])


def test_stop(client: openai.OpenAI) -> None:
    fields = {"model": "tiny", "prompt": "once", "temperature": 0, "max_tokens": 24}
    text = client.completions.create(**fields).choices[0].text
    middle = text[5:8]
    stopped = client.completions.create(**fields, stop=middle).choices[0]
    assert stopped.text == text[: text.index(middle)]
    assert stopped.finish_reason == "stop"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (openai.BadRequestError, {"max_tokens": 0}),
        (openai.BadRequestError, {"extra_body": {"temprature": 1}}),
        (openai.NotFoundError, {"model": "other"}),
    ],
)
def test_errors_are_typed(
    client: openai.OpenAI, kind: type[openai.APIStatusError], fields: dict[str, object]
) -> None:
    with pytest.raises(kind) as caught:
        client.completions.create(**{"model": "tiny", "prompt": "a", **fields})  # type: ignore[call-overload]
    assert caught.value.body["message"]  # type: ignore[index]
    assert caught.value.request_id


def test_responses_whole_and_streamed(client: openai.OpenAI) -> None:
    fields = {"model": "tiny", "input": "Tell me a story.", "max_output_tokens": 12}
    whole = client.responses.create(**fields, temperature=0, instructions="Be brief.")
    chat = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "Be brief."}, *MESSAGES],  # type: ignore[list-item]
        max_tokens=12,
        temperature=0,
    )
    assert whole.output_text == chat.choices[0].message.content
    with client.responses.stream(**fields, temperature=0, instructions="Be brief.") as stream:
        kinds = [event.type for event in stream]
        deltas = kinds.count("response.output_text.delta")
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert 0 < deltas <= 12
    assert whole.usage.total_tokens == chat.usage.total_tokens


def test_a_response_goes_on(client: openai.OpenAI) -> None:
    short = {"model": "tiny", "max_output_tokens": 4, "temperature": 0}
    first = client.responses.create(input="Hi", **short)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(input="And?", previous_response_id=first.id, **short)
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [getattr(item, "role", None) for item in items] == ["user", "assistant", "user"]
    echoed = [{"role": "user", "content": "Hi"}, *first.output, {"role": "user", "content": "And?"}]
    again = client.responses.create(input=echoed, **short)  # type: ignore[arg-type]
    assert again.output_text == second.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_stream_in_the_background_is_taken_up_again(
    client: openai.OpenAI, server: Server
) -> None:
    fields: dict[str, Any] = {"model": "tiny", "input": "Hi", "temperature": 0, "stream": True}
    events = client.responses.create(**fields, background=True, max_output_tokens=30)
    first = [next(events) for _ in range(4)]
    events.close()
    name = first[0].response.id
    after = first[-1].sequence_number
    rest = list(client.responses.retrieve(name, stream=True, starting_after=after))
    assert [e.sequence_number for e in first + rest] == list(range(4 + len(rest)))
    whole = client.responses.create(**{**fields, "stream": False}, max_output_tokens=30)
    assert rest[-1].response.output_text == whole.output_text
    assert client.responses.retrieve(name).output_text == whole.output_text
    server.wait_until_idle()


def test_a_response_in_the_background_is_cancelled(client: openai.OpenAI, server: Server) -> None:
    begun = client.responses.create(model="tiny", input="Hi", background=True, extra_body=ENDLESS)
    assert begun.status == "queued"
    assert client.responses.cancel(begun.id).status in ("cancelled", "incomplete")
    server.wait_until_idle()


def test_a_response_of_a_structure_and_of_a_tool(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    tight = {"model": "tiny", "input": "Hi", "temperature": 0, "max_output_tokens": 300}
    found = client.responses.create(
        **tight, text={"format": {"type": "json_schema", "name": "s", "schema": schema}}
    )
    if found.status == "completed":  # else in the middle of white space
        assert json.loads(found.output_text) == {"a": "b"}
    called = client.responses.create(
        **tight,
        tools=[{"type": "function", "name": "find", "parameters": schema, "strict": True}],
        tool_choice={"type": "function", "name": "find"},
    )
    [call] = called.output
    assert call.type == "function_call"
    assert call.name == "find"


def test_errors_of_responses_are_typed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_output_tokens"):
        client.responses.create(model="tiny", input="Hi", max_output_tokens=0)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="Hi")
    with pytest.raises(openai.BadRequestError, match="conversation"):
        client.responses.create(model="tiny", input="Hi", conversation="c")


async def test_async_client(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = await client.completions.create(
            model="tiny", prompt="once", max_tokens=6, temperature=0, stream=True
        )
        pieces = [chunk.choices[0].text async for chunk in stream]
    assert "".join(pieces) == server.text(prompt="once", max_tokens=6)


@pytest.mark.parametrize("n", [1, 3])
def test_a_closed_stream_frees_its_blocks(client: openai.OpenAI, server: Server, n: int) -> None:
    aborted = server.metric("request_success_total")
    stream = client.completions.create(
        model="tiny", prompt="once", n=n, max_tokens=500, stream=True, extra_body=ENDLESS
    )
    next(iter(stream))
    stream.close()
    server.wait_until_idle()
    assert server.metric("request_success_total") == aborted + n
    assert server.metric("generation_tokens_total") > 0


ENDLESS = {"ignore_eos": True}
