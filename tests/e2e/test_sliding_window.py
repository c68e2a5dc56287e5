"""Giving back the blocks behind a sliding window changes no token."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.model_config import ModelConfig
from tests.e2e.tiny_model import VOCAB_SIZE, write_tiny_model

WINDOW = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        write_tiny_model(
            tmp_path_factory.mktemp("sliding"),
            model_type="mistral",
            architectures=["MistralForCausalLM"],
            sliding_window=WINDOW,
        )
    )


def answers(model: str, **flags: Any) -> list[list[int]]:
    rng = Random(4)
    stem = [rng.randrange(256) for _ in range(150)]
    prompts = [
        {"prompt_token_ids": stem[: rng.randint(1, 150)] + [rng.randrange(VOCAB_SIZE)] * (i % 40)}
        for i in range(24)
    ]
    sampling = SamplingParams(temperature=0.8, seed=1, max_tokens=45, ignore_eos=True)
    with LLM(model=model, max_model_len=400, **flags) as llm:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        # All of 400 tokens would take 25 blocks.
        assert llm.generate([{"prompt_token_ids": stem * 2}], sampling, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("kv_cache_dtype", ["auto", pytest.param("int8", marks=pytest.mark.slow)])
def test_few_blocks_give_the_same_tokens(
    model: str, kv_cache_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: dict[str, Any] = {"kv_cache_dtype": kv_cache_dtype, "enforce_eager": False}
    swap = {"swap_space": 0.01, "preemption_mode": "swap"}
    few = [
        answers(model, num_gpu_blocks_override=blocks, max_num_batched_tokens=48,
                max_num_seqs=8, **host, **flags)
        for blocks, host in ((9, {}), (9, swap), (40, {}))
    ]  # fmt: skip
    monkeypatch.setattr(ModelConfig, "common_window", None)
    kept = answers(model, enable_prefix_caching=False, **flags)
    assert few == [kept] * 3


def test_evicted_windows_come_back_from_memory_and_files(model: str, tmp_path: Path) -> None:
    rng = Random(5)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(150)] for _ in range(8)]
    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with LLM(
        model=model,
        max_model_len=400,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        num_gpu_blocks_override=12,
        kv_offloading_size=0.0004,
        kv_offloading_dir=str(tmp_path),
        kv_offloading_disk_size=0.1,
    ) as llm:
        first, again = (
            [
                llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0]
                for prompt in prompts
            ]
            for _ in range(2)
        )
        scheduler = llm.stats.scheduler
        llm.call("check_integrity")
    assert [o.outputs[0].token_ids for o in again] == [o.outputs[0].token_ids for o in first]
    assert [o.num_cached_tokens for o in first] == [0] * 8
    assert [o.num_cached_tokens for o in again] == [144] * 8
    # Of a prompt's nine cached blocks no more than the three that the window reaches.
    assert scheduler.host_tier.loaded <= 3 * 8
    assert scheduler.host_tier.saved > 0
