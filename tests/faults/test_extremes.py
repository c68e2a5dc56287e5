"""Row 63: extremes and wrong types in every field, of engines, requests and endpoints."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from quire.core.beam_search import BeamSearchParams
from quire.core.errors import CheckpointError, ConfigError, InvalidRequestError, QuireError
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.llm import LLM
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import engine_args, resolve
from quire.server.anthropic.protocol import CountRequest, MessagesRequest
from quire.server.openai.pooling_protocol import EmbeddingRequest
from quire.server.openai.protocol import ChatRequest, CompletionRequest
from quire.server.openai.tokens import DetokenizeRequest, TokenizeRequest
from quire.server.responses.protocol import ResponsesRequest
from quire.system.hardware import detect
from tests.e2e.serving import Server
from tests.faults.requests import assert_no_secret, assert_unharmed, extremes

NUMBERS = [
    *(0, 1, -1, 2**31, 2**63, 2**70, -(2**70), 10**400),
    *(1e308, 5e-324, 1e-40, -0.0, 1.5, math.nan, math.inf, -math.inf),
]
OTHERS = [
    *("", "x", "x" * 5000, "\ud800", "\0", "~nobody-of-this-name/x", b"x", None, True, object()),
    *([], [0], [-1], [2**70], ["a"], [""], ["\ud800"], [None], [1.5], [[]], ("a",), {1, 2}),
    *({}, {1: 1}, {"a": 1}, {1: "a"}, {1: math.nan}, {2**70: 1}),
]
VALUES: list[Any] = [*NUMBERS, *OTHERS]
GREEDY = SamplingParams(max_tokens=4, temperature=0.0)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model)) as running:
        yield running


@pytest.fixture(autouse=True)
def _unharmed(llm: LLM) -> Iterator[None]:
    expected = tokens(llm, GREEDY)
    yield
    assert tokens(llm, GREEDY) == expected


def tokens(llm: LLM, params: SamplingParams) -> list[int]:
    [output] = llm.generate("a", params, use_tqdm=False)
    assert output.outputs[0].finish_reason in ("stop", "length"), params
    return list(output.outputs[0].token_ids)


def refused(make: Any) -> bool:
    """Whether it raises an error of ours; any other is this test's."""
    try:
        make()
    except QuireError:
        return True
    return False


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(EngineArgs)])
def test_row_63_engine_arguments(
    name: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    machine = detect()

    def make(value: Any) -> None:
        fields = {"model": str(tiny_model), name: value}
        resolved = resolve(engine_args(fields.pop("model"), fields), machine)
        msgspec.msgpack.encode(resolved.config)  # as it goes to the core

    for value in VALUES:
        refused(partial(make, value))


STARTS: list[dict[str, Any]] = [
    *({"seed": -(2**63)}, {"seed": 2**63 - 1}, {"max_model_len": 2}, {"max_num_seqs": 2**16}),
    *({"gpu_memory_utilization": 5e-324}, {"kv_cache_memory_bytes": 1}),
    *({"kv_cache_memory_bytes": 2**62}, {"num_gpu_blocks_override": 2**31 - 1}),
    *({"num_gpu_blocks_override": 1}, {"max_num_batched_tokens": 2**24}, {"swap_space": 2**20}),
    *({"num_scheduler_steps": 1024}, {"step_timeout": 5e-324}, {"pack_cache_bytes": 2**62}),
    {"enable_lora": True, "max_loras": 1024, "max_lora_rank": 2**16},
    {"otlp_traces_endpoint": "http://["},
    {"otlp_traces_endpoint": "http://x:99999999"},
    {"kv_offloading_size": 0.001, "kv_offloading_dir": "x" * 5000},
]


@pytest.mark.parametrize("fields", STARTS, ids=repr)
def test_row_63_engines_at_their_limits_start_or_say_why(
    tiny_model: Path, fields: dict[str, Any]
) -> None:
    def make() -> None:
        with LLM(str(tiny_model), **fields) as started:
            started.generate("a", SamplingParams(max_tokens=1, seed=1), use_tqdm=False)

    refused(make)


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"max_model_len": 1}, ConfigError, "max_model_len is 1"),
        ({"seed": 2**70}, ConfigError, "seed is 1180591620717411303424"),
        (
            {"hf_overrides": {"max_position_embeddings": 1}},
            CheckpointError,
            "the model has 1 position",
        ),
    ],
)
def test_row_63_engines_that_could_serve_nothing(
    tiny_model: Path, fields: dict[str, Any], kind: type[QuireError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        LLM(str(tiny_model), **fields)


@pytest.mark.parametrize("eos", ["x", True, [None, 1.5], {}])
def test_row_63_ends_of_a_generation_config(tiny_model: Path, tmp_path: Path, eos: object) -> None:
    for file in tiny_model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(CheckpointError, match=r"eos_token_id of generation_config\.json is"):
        LLM(str(tmp_path))


@pytest.mark.parametrize("vocab_size", [1, 255])
def test_row_63_a_vocabulary_without_all_bytes(vocab_size: int) -> None:
    shape = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}
    overrides = {**shape, **heads, "vocab_size": vocab_size, "eos_token_id": 0, "bos_token_id": 0}
    with pytest.raises(ConfigError, match=f"{vocab_size} ids cannot hold every byte"):
        LLM("qwen3-0.6b", load_format="dummy", hf_overrides=overrides)


def test_row_63_sampling_parameters(llm: LLM) -> None:
    base = {"max_tokens": 2, "temperature": 0.7, "seed": 1}
    for field in msgspec.structs.fields(SamplingParams):
        for value in VALUES:
            refused(lambda: tokens(llm, SamplingParams(**{**base, field.name: value})))  # noqa: B023


def test_row_63_other_parameters(llm: LLM) -> None:
    base: dict[str, Any] = {"beam_width": 1, "max_tokens": 1}
    for value in VALUES:
        for kind, given in ((PoolingParams, {}), (BeamSearchParams, base)):
            for field in msgspec.structs.fields(kind):
                refused(lambda: kind(**{**given, field.name: value}))  # noqa: B023
        for field in msgspec.structs.fields(StructuredOutputsParams):
            for other in ({}, {"regex": "a"}, {"json_object": True}):
                refused(lambda: StructuredOutputsParams(**{**other, field.name: value}))  # noqa: B023
        for name in ("prompts", "sampling_params", "priority", "lora_request"):
            arguments = {"prompts": "a", "sampling_params": GREEDY, name: value}
            refused(lambda: llm.generate(**arguments, use_tqdm=False))  # noqa: B023


@pytest.mark.parametrize("fields", [{"repetition_penalty": 5e-324}, {"seed": 2**70}, {"n": True}])
def test_row_63_names_the_field(llm: LLM, fields: dict[str, Any]) -> None:
    [name] = fields
    with pytest.raises(InvalidRequestError, match=f"^{name} is") as caught:
        tokens(llm, SamplingParams(**fields))
    assert caught.value.param == name


def test_row_63_small_numbers_that_are_served(llm: LLM) -> None:
    greedy = tokens(llm, GREEDY)
    for temperature in (5e-324, 1e-310, 1e-40):
        assert tokens(llm, SamplingParams(max_tokens=4, temperature=temperature)) == greedy
    for fields in ({"top_p": 5e-324}, {"min_p": 1.0}, {"repetition_penalty": 0.01}):
        tokens(llm, SamplingParams(max_tokens=4, seed=1, **fields))
    numpy = SamplingParams(max_tokens=np.int64(4), temperature=np.float32(0.0))
    assert tokens(llm, numpy) == greedy
    assert (numpy.max_tokens, numpy.temperature) == (4, 0.0)


MESSAGES = [{"role": "user", "content": "a"}]
ENDPOINTS: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "/v1/completions": (CompletionRequest, {"prompt": "a", "max_tokens": 2}),
    "/v1/chat/completions": (ChatRequest, {"messages": MESSAGES, "max_tokens": 2}),
    "/v1/responses": (ResponsesRequest, {"input": "a", "max_output_tokens": 2}),
    "/v1/messages": (MessagesRequest, {"model": "tiny", "messages": MESSAGES, "max_tokens": 2}),
    "/v1/messages/count_tokens": (CountRequest, {"model": "tiny", "messages": MESSAGES}),
    "/tokenize": (TokenizeRequest, {"prompt": "a"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
    "/v1/embeddings": (EmbeddingRequest, {"input": "a"}),
}


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_row_63_fields_of_endpoints(server: Server, path: str, part: int) -> None:
    """Every second extreme of a field; the next field gets the others."""
    kind, body = ENDPOINTS[path]
    canary = server.text()
    for number, field in enumerate(msgspec.structs.fields(kind)):
        for whole in islice(extremes(body, field.encode_name), (number + part) % 2, None, 2):
            headers = {"content-type": "application/json"}
            response = server.http.post(path, content=whole.encode(), headers=headers)
            assert response.status_code in (200, 400, 404), (whole, response.text)
            assert_no_secret(response.text)
    assert_unharmed(server, canary)
