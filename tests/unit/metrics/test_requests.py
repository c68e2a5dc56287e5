"""Requests are counted by what they ask for."""

from __future__ import annotations

from copy import copy

from quire.core.lora import LoRARequest
from quire.core.options import NO_OPTIONS, RequestOptions
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.metrics.repeats import Repeats
from quire.metrics.requests import RequestMix


def test_each_kind_counts() -> None:
    mix = RequestMix()
    for params in (
        SamplingParams(n=3, logprobs=5),
        SamplingParams(prompt_logprobs=0, presence_penalty=0.5),
        SamplingParams(logit_bias={1: 2.0}),
        SamplingParams(structured_outputs=StructuredOutputsParams(regex="a")),
        SamplingParams(stop=["."]),
        SamplingParams(stop_token_ids=[3]),
    ):
        mix.add(params, NO_OPTIONS, Repeats())
    mix.add(PoolingParams(), NO_OPTIONS, Repeats(salted=64, shifted=128))
    assert mix == RequestMix(7, 9, 1, 5, 1, 1, 1, 1, stops=2, salted_tokens=64, shifted_tokens=128)
    first = copy(mix)
    adapter = RequestOptions(lora_request=LoRARequest("a", 1, "path"))
    mix.add(SamplingParams(repetition_penalty=1.1), adapter, Repeats())
    assert mix.since(first) == RequestMix(1, 1, penalties=1, adapters=1)
    assert mix.since(first).share("penalties") == 1.0
    assert RequestMix().share("logprobs") == 0.0
