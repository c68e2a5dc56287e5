"""The same answer every time: batch-mates, chunks, prefix hits and preemption change no token."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.outputs import RequestOutput

PROMPT_SEED = 20
NUM_REQUESTS = 24
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
    "num_speculative_tokens_per_batch_size": [[1, 64, 4]],
}


@pytest.fixture(scope="module")
def model(shared_dir: Path) -> str:
    return str(shared_dir / "models" / "tinystories-656k")


def prompts() -> list[dict[str, list[int]]]:
    """Prompts of mixed length; half of them begin with one of two shared stems."""
    rng = Random(PROMPT_SEED)
    stems = [[rng.randrange(3, 2048) for _ in range(70)] for _ in range(2)]
    return [
        {
            "prompt_token_ids": (rng.choice(stems) if i % 2 else [])
            + [rng.randrange(3, 2048) for _ in range(rng.randint(1, 120))]
        }
        for i in range(NUM_REQUESTS)
    ]


def params(greedy: bool) -> list[SamplingParams]:
    rng = Random(PROMPT_SEED + 1)
    return [
        SamplingParams(
            temperature=0.0 if greedy else 0.9,
            top_p=1.0 if greedy else 0.95,
            seed=i,
            max_tokens=rng.randint(4, 40),
            ignore_eos=True,
        )
        for i in range(NUM_REQUESTS)
    ]


def answers(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def run(model: str, sampling: list[SamplingParams], **flags: Any) -> tuple[list[list[int]], Any]:
    with LLM(model=model, max_model_len=256, **{"dtype": "float32", **flags}) as llm:
        outputs = llm.generate(prompts(), sampling, use_tqdm=False)
    return answers(outputs), outputs


@pytest.fixture(scope="module", params=[True, False], ids=["greedy", "seeded"])
def alone(request: pytest.FixtureRequest, model: str) -> tuple[list[SamplingParams], Any]:
    """Each request by itself, in one chunk, nothing cached."""
    sampling = params(request.param)
    flags = {"max_num_seqs": 1, "enable_prefix_caching": False}
    return sampling, run(model, sampling, **flags)[0]


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize(
    "flags",
    [
        {"enable_prefix_caching": False},
        {"enable_prefix_caching": True},
        {"max_num_seqs": 16, "max_num_batched_tokens": 37, "block_size": 8},
        {"max_num_seqs": 3, "max_num_batched_tokens": 7, "block_size": 32},
        {"num_scheduler_steps": 5},
        {"async_scheduling": True},
        {"async_scheduling": True, "num_scheduler_steps": 3, "max_num_batched_tokens": 64},
        {"max_num_seqs": 4, "max_itl_stretch": 1.0},
        {"max_num_seqs": 4, "max_itl_stretch": 4.0, "async_scheduling": True},
        {"speculative_config": NGRAM},
        {"speculative_config": {"method": "suffix"}, "max_num_seqs": 4},
        {"speculative_config": NGRAM, "async_scheduling": True, "num_scheduler_steps": 2},
    ],
    ids=[
        *("batch", "prefix-caching", "small-chunks", "tiny-chunks"),
        *("multi-step", "async", "async-multi-step", "even-pace", "uneven-pace"),
        *("ngram", "suffix", "async-multi-step-ngram"),
    ],
)
def test_batches_and_chunks(
    model: str, alone: tuple[list[SamplingParams], Any], flags: dict[str, Any]
) -> None:
    sampling, expected = alone
    got, outputs = run(model, sampling, **flags)
    assert got == expected
    if flags.get("enable_prefix_caching"):
        assert sum(output.num_cached_tokens for output in outputs) > 500


@pytest.mark.parametrize(
    "flags",
    [
        # The last case has both of these.
        pytest.param({"quantization": "int8", "ops": "cpu"}, marks=pytest.mark.slow),
        pytest.param({"kv_cache_dtype": "int8"}, marks=pytest.mark.slow),
        {"quantization": "int4", "ops": "cpu"},
        {"quantization": "int4_g32", "ops": "cpu"},
        {"quantization": "int8", "kv_cache_dtype": "int8", "ops": "cpu"},
    ],
    ids=["int8", "kv-cache", "int4", "int4-g32", "int8-kv-cache"],
)
def test_quantized(model: str, flags: dict[str, Any]) -> None:
    sampling = params(greedy=True)
    alone = run(model, sampling, max_num_seqs=1, enable_prefix_caching=False, **flags)[0]
    got, outputs = run(model, sampling, **flags)
    assert got == alone
    assert sum(output.num_cached_tokens for output in outputs) > 500
    small = {"max_num_batched_tokens": 37, "max_num_seqs": 8, "num_gpu_blocks_override": 24}
    got, outputs = run(model, sampling, **small, **flags)
    assert got == alone
    assert sum(output.metrics.num_preemptions for output in outputs) > 0


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("caching", [False, True])
def test_preemption(model: str, alone: tuple[list[SamplingParams], Any], caching: bool) -> None:
    sampling, expected = alone
    got, outputs = run(model, sampling, num_gpu_blocks_override=24, enable_prefix_caching=caching)
    assert got == expected
    assert sum(output.metrics.num_preemptions for output in outputs) > 0


TYPES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
}


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
def test_everything_at_once(model: str, types: dict[str, Any]) -> None:
    """Part of what `benchmarks/token_differences.py` asks of many more combinations."""
    sampling = [p if i % 2 else p.replace(temperature=0.0) for i, p in enumerate(params(False))]
    flags = {**types, "ops": "cpu"}
    alone = run(model, sampling, max_num_seqs=1, enable_prefix_caching=False, **flags)[0]
    few = {"num_gpu_blocks_override": 24, "max_num_batched_tokens": 64}
    swap = {"preemption_mode": "swap", "swap_space": 0.01, "enable_prefix_caching": False}
    pipeline = {"async_scheduling": True, "num_scheduler_steps": 3}
    for how in (few, few | swap, few | pipeline, few | swap | pipeline):
        got, outputs = run(model, sampling, **how, **flags)
        assert got == alone
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
