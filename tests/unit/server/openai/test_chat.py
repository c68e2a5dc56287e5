"""POST /v1/chat/completions over the real front end and a model that spells the alphabet."""

from dataclasses import replace
from typing import Any

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.errors import ConfigError
from tests.unit.server.fake_engine import FaultyExecutor, Running, running
from tests.unit.server.sse import events


class Stuck(FaultyExecutor):
    """Says only "b"."""

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        output = super().execute(batch)
        output.sampled_token_ids[output.sampled_token_ids >= 0] = ord("b")
        return output


USER = {"role": "user", "content": "a"}


async def test_answers(app: Running) -> None:
    response = await app.chat()
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["id"] == f"chatcmpl-{response.headers['x-request-id']}"
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": ";<=", "refusal": None}
    assert choice["finish_reason"] == "length"
    prompt = "user: a\nassistant:"
    assert body["usage"]["prompt_tokens"] == len(prompt)


async def test_content_parts_are_joined(app: Running) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = (await app.chat(messages=[{"role": "user", "content": parts}])).json()
    assert body["usage"]["prompt_tokens"] == len("user: a\nb\nassistant:")


async def test_the_operators_template() -> None:
    async with running(chat_template="{{ messages[0].content }}") as app:
        body = (await app.chat()).json()
        assert body["choices"][0]["message"]["content"] == "bcd"


async def test_no_template_is_the_clients_to_know(app: Running) -> None:
    app.engine.tokenizer.chat_templates.clear()
    response = await app.chat()
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]


async def test_an_answers_message_can_be_sent_back(app: Running) -> None:
    message = (await app.chat()).json()["choices"][0]["message"]
    response = await app.chat(messages=[USER, message, USER])
    assert response.status_code == 200


async def test_continue_final_message(app: Running) -> None:
    messages = [USER, {"role": "assistant", "content": "ab"}]
    body = (await app.chat(messages=messages, continue_final_message=True)).json()
    assert body["choices"][0]["message"]["content"] == "cde"


@pytest.mark.parametrize("mark", ["prefix", "partial"])
async def test_a_last_message_may_say_that_it_is_continued(app: Running, mark: str) -> None:
    begun = {"role": "assistant", "content": "ab", mark: True}
    body = (await app.chat(messages=[USER, begun])).json()
    assert body["choices"][0]["message"]["content"] == "cde"
    assert "warnings" not in body
    for messages in ([begun, USER], [USER, {**USER, mark: True}]):
        assert (await app.chat(messages=messages)).status_code == 400
    wrong = await app.chat(messages=[USER, begun], continue_final_message=False)
    assert wrong.json()["error"]["param"] == f"messages[1].{mark}"


async def test_logprobs_have_bytes(app: Running) -> None:
    body = (await app.chat(logprobs=True, top_logprobs=2, max_tokens=1)).json()
    [token] = body["choices"][0]["logprobs"]["content"]
    assert token == {
        "token": ";",
        "logprob": -0.5,
        "bytes": [59],
        "top_logprobs": [
            {"token": ";", "logprob": -0.5, "bytes": [59]},
            {"token": "!", "logprob": -2.0, "bytes": [33]},
        ],
    }
    body = (await app.chat(logprobs=True, max_tokens=1)).json()
    assert body["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_stream_says_the_same() -> None:
    async with running(seconds=0.001) as app:
        fields: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 1}
        whole = (await app.chat(**fields)).json()
        options = {"include_usage": True}
        *pieces, last = events((await app.chat(**fields, stream=True, stream_options=options)).text)
        assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert [p["choices"][0]["delta"] for p in pieces[:2]] == 2 * [
            {"role": "assistant", "content": ""}
        ]
        for choice in whole["choices"]:
            mine = [c for p in pieces for c in p["choices"] if c["index"] == choice["index"]]
            text = "".join(c["delta"].get("content", "") for c in mine)
            assert text == choice["message"]["content"]
            assert mine[-1]["finish_reason"] == choice["finish_reason"]
            told = [t for c in mine[1:] for t in c["logprobs"]["content"]]
            assert told == choice["logprobs"]["content"]


@pytest.mark.parametrize("force", [False, True])
async def test_a_stream_counts_as_it_goes(force: bool) -> None:
    async with running(seconds=0.001, force_include_usage=force) as app:
        asked = {"include_usage": not force, "continuous_usage_stats": True}
        pieces = events((await app.chat(n=2, stream=True, stream_options=asked)).text)
        counts = [piece["usage"]["completion_tokens"] for piece in pieces]
        whole = (await app.chat(n=2)).json()["usage"]
        assert counts == sorted(counts)
        assert len(set(counts)) > 1
        assert pieces[-1]["choices"] == []
        assert counts[-1] == whole["completion_tokens"]


async def test_usage_of_a_stream_is_as_vllm_has_it(app: Running) -> None:
    pieces = events((await app.chat(stream=True)).text)
    alone = {"continuous_usage_stats": True}
    pieces += events((await app.chat(stream=True, stream_options=alone)).text)
    assert not any("usage" in piece for piece in pieces)
    async with running(force_include_usage=True) as app:
        [*pieces, last] = events((await app.chat(stream=True)).text)
        assert {piece["usage"] for piece in pieces} == {None}
        assert last["usage"]["completion_tokens"] == 3


async def test_max_completion_tokens_is_max_tokens(app: Running) -> None:
    body = (await app.chat(max_tokens=None, max_completion_tokens=2)).json()
    assert body["usage"]["completion_tokens"] == 2
    response = await app.chat(max_tokens=3, max_completion_tokens=2)
    assert response.json()["error"]["param"] == "max_completion_tokens"


async def test_no_limit_is_the_context(app: Running) -> None:
    body = (await app.chat(max_tokens=None, ignore_eos=True)).json()
    assert body["usage"]["total_tokens"] == app.engine.max_model_len


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].image_url",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:,a"}}],
                    }
                ]
            },
            "messages",
        ),
        ({"messages": [{**USER, "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
        ({"tools": [{}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "triggers": []}}, "response_format.triggers"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {}},
                    "schema": {},
                }
            },
            "response_format.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0, "max_tokens": None}, "max_completion_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"reasoning_format": "raw"}, "reasoning_format"),
    ],
)
async def test_refusals_name_the_field(fields: dict[str, Any], param: str, app: Running) -> None:
    response = await app.chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_server_may_name_tokens_by_id() -> None:
    async with running(return_tokens_as_token_ids=True) as app:
        asked: dict[str, Any] = {"logprobs": True, "max_tokens": 1}
        for own, named in ((None, True), (False, False)):
            response = await app.chat(**asked, return_tokens_as_token_ids=own)
            [entry] = response.json()["choices"][0]["logprobs"]["content"]
            assert entry["token"].startswith("token_id:") is named
        response = await app.complete(logprobs=0, max_tokens=1)
        assert response.json()["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")


async def test_max_logprobs_limits_beams_and_names_their_field(app: Running) -> None:
    config = replace(app.engine.resolved.config, max_logprobs=5)
    app.engine.resolved = replace(app.engine.resolved, config=config)
    response = await app.chat(use_beam_search=True, n=3)
    error = response.json()["error"]
    assert (error["param"], error["message"]) == (
        "n", "n is 3; beam search keeps 1 to 2 texts.",
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits"])
async def test_nothing_adds_up_logits(mode: str, app: Running) -> None:
    config = replace(app.engine.resolved.config, logprobs_mode=mode)
    app.engine.resolved = replace(app.engine.resolved, config=config)
    for name, response in (
        ("use_beam_search", await app.chat(use_beam_search=True, n=2)),
        ("best_of", await app.complete(best_of=2)),
    ):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == name
        assert mode in response.json()["error"]["message"]
    assert (await app.complete(best_of=1, logprobs=1)).status_code == 200


async def test_a_default_variable_of_the_template_that_is_quires_own() -> None:
    with pytest.raises(ConfigError, match="template-kwargs may not set messages, tools"):
        async with running(default_chat_template_kwargs={"tools": 1, "messages": 2, "x": 3}):
            pass


async def test_an_answer_that_repeats_itself_ends() -> None:
    wanted = {"max_pattern_size": 2, "min_count": 2}
    async with running(executor=Stuck) as app:
        asked: dict[str, Any] = {"repetition_detection": wanted}
        for response in (await app.complete(**asked), await app.chat(**asked)):
            [choice] = response.json()["choices"]
            assert (choice["finish_reason"], choice["stop_reason"]) == (
                "repetition", "repetition_detected",
            )  # fmt: skip
        for wrong in ({"max_pattern_size": 2, "min_count": 1}, {"max_pattern_size": 1025}):
            response = await app.chat(repetition_detection=wrong)
            assert response.json()["error"]["param"] == "repetition_detection"


async def test_media_that_a_tool_returned() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    parts = [{"type": "text", "text": "See:"}, image]
    result = {"role": "tool", "tool_call_id": "1", "content": parts}
    async with running(chat_template="{{ messages[-1].content }}a") as app:
        body = (await app.chat(messages=[USER, result])).json()
        assert [each["param"] for each in body["warnings"]] == ["messages[1].content[1]"]
        seen = "See:\n[image left out: this model reads text]a"
        assert body["usage"]["prompt_tokens"] == len(seen)
        for wrong in ([USER, {**result, "content": [7]}], [7], 7):
            assert (await app.chat(messages=wrong)).status_code == 400
    async with running(strict_fields=True) as app:
        refused = (await app.chat(messages=[USER, result])).json()
        assert refused["error"]["param"] == "messages[1].content[1]"


async def test_a_body_that_is_packed(app: Running) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await app.http.post("/v1/chat/completions", content=b"", headers=headers)
    assert response.status_code == 415
    assert "Content-Encoding is gzip" in response.json()["error"]["message"]


async def test_neutral_values_are_accepted(app: Running) -> None:
    response = await app.chat(
        tools=None,
        tool_choice="none",
        response_format={"type": "text"},
        store=False,
        service_tier="auto",
        modalities=["text"],
        models=["other"],
        reasoning_format="parsed",
        logprobs=False,
        top_logprobs=0,
        stream=False,
        stream_options=None,
    )
    assert response.status_code == 200


async def test_token_ids_are_told() -> None:
    async with running(seconds=0.001) as app:
        prompt = list(b"user: a\nassistant:")
        body = (await app.chat(return_token_ids=True)).json()
        assert body["prompt_token_ids"] == prompt
        assert body["choices"][0]["token_ids"] == list(b";<=")
        chunks = events((await app.chat(return_token_ids=True, stream=True)).text)
        assert [c["prompt_token_ids"] for c in chunks if "prompt_token_ids" in c] == [prompt]
        told = [c["choices"][0].get("token_ids", []) for c in chunks]
        assert [token for each in told for token in each] == list(b";<=")


async def test_the_prompt_is_shown_as_the_model_reads_it(app: Running) -> None:
    prompt = "user: a\nassistant:"
    body = (await app.chat(return_prompt_text=True)).json()
    assert body["prompt_text"] == prompt
    assert (await app.chat()).json()["prompt_text"] is None
    cut = await app.chat(return_prompt_text=True, truncate_prompt_tokens=4)
    assert cut.json()["prompt_text"] == prompt[-4:]
    chunks = events((await app.chat(return_prompt_text=True, stream=True, n=2)).text)
    assert [c["prompt_text"] for c in chunks if "prompt_text" in c] == [prompt]
