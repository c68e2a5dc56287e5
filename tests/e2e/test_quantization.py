"""What quantization costs: the perplexity of a real model, from the log-probabilities it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire import LLM, SamplingParams
from quire.bench.quality import prompt_predictions

FLAGS: list[tuple[dict[str, str | bool], float]] = [
    ({"quantization": "int8"}, 1.01),
    ({"quantization": "int8_w8a16"}, 1.01),
    ({"quantization": "q8_0"}, 1.01),
    ({"quantization": "q6_k"}, 1.01),
    ({"quantization": "int4_g32"}, 1.15),
    ({"quantization": "int4_g64"}, 1.15),
    ({"quantization": "int4"}, 1.15),
    ({"kv_cache_dtype": "int8"}, 1.005),
    ({"kv_cache_dtype": "fp8"}, 1.02),
    ({"kv_cache_dtype": "fp8", "calculate_kv_scales": True}, 1.02),
    ({"kv_cache_dtype": "fp8_e5m2"}, 1.04),
    ({"quantization": "int8", "kv_cache_dtype": "int8"}, 1.02),
]
"""What is quantized, and the most drift of perplexity against the same model unquantized. The
smaller a model, the more 4 bits cost: some 8 % for tinystories-656k, below 1 % for the embedded
one, which has ten times the weights."""


@pytest.mark.parametrize(
    ("model", "some"),
    [
        ("embedded", FLAGS[::2]),
        pytest.param("embedded", FLAGS[1::2], marks=pytest.mark.slow),
        pytest.param("tinystories-656k", FLAGS, marks=pytest.mark.slow),
    ],
)
def test_quantized_weights_and_cache_keep_the_perplexity(
    model: str, some: list[tuple[dict[str, str | bool], float]], request: pytest.FixtureRequest
) -> None:
    if model != "embedded":
        shared: Path = request.getfixturevalue("shared_dir")
        model = str(shared / "models" / model)
    # The model's own words, so that they are words it knows.
    params = [SamplingParams(max_tokens=150, seed=seed) for seed in range(6)]
    with LLM(model=model) as llm:
        stories = llm.generate(["Once upon a time"] * 6, params, use_tqdm=False)
    prompts = [story.prompt_token_ids + story.outputs[0].token_ids for story in stories]
    exact = perplexity(model, prompts)
    for flags, most in some:
        drift = perplexity(model, prompts, **flags) / exact
        print(model, flags, f"{exact:.4f} {drift:.5f}")
        assert 1 / most < drift < most


def perplexity(model: str, prompts: list[list[int]], **flags: str | bool) -> float:
    with LLM(model=model, **flags) as llm:
        return prompt_predictions(llm, prompts).perplexity
