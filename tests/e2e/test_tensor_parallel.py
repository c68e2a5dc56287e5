"""Two ranks give one process's answers, whatever is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.core.hardware import detect
from quire.core.structured_outputs import StructuredOutputsParams

pytestmark = pytest.mark.skipif(detect().cores < 2, reason="every rank needs a core of its own")

PROMPTS = ["Once upon a time", "A cat", "The dog said", "One morning"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40, prompt_logprobs=1, logprobs=2),
    SamplingParams(temperature=0.9, seed=3, max_tokens=40, repetition_penalty=1.2),
    SamplingParams(
        temperature=0.8,
        seed=5,
        max_tokens=40,
        structured_outputs=StructuredOutputsParams(regex=r"[A-Z][a-z ]{20,30}\."),
    ),
    SamplingParams(temperature=0.8, seed=6, n=2, max_tokens=60, ignore_eos=True),
]


def answers(ranks: int, **fields: Any) -> list[list[list[int]]]:
    """Tokens of all answers, of the same requests twice: the second time prefixes are cached."""
    with LLM(dtype="float32", max_model_len=256, tensor_parallel_size=ranks, **fields) as llm:
        outputs = [*llm.generate(PROMPTS, PARAMS), *llm.generate(PROMPTS, PARAMS)]
        llm._core.scheduler.check_integrity()
        return [[list(o.token_ids) for o in output.outputs] for output in outputs]


def test_two_ranks_give_one_ranks_answers(tmp_path: Path) -> None:
    """With steps that overlap, and so few blocks that requests are swapped out, and prefixes are
    kept in memory and files."""
    tiers = {
        "num_gpu_blocks_override": 18,
        "preemption_mode": "swap",
        "swap_space": 0.01,
        "kv_offloading_size": 0.001,
        "kv_offloading_dir": str(tmp_path),
        "async_scheduling": True,
    }
    assert answers(2, **tiers) == answers(1, num_gpu_blocks_override=256)
    assert list(tmp_path.iterdir()) == []
