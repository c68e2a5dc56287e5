"""Structured output on the embedded model: valid, and the same however it is computed."""

from __future__ import annotations

import pytest

from quire import LLM
from tests.golden.structured_generations import generate, is_valid

COUNT = 12
PLAIN = {"model": "embedded", "max_model_len": 512, "num_gpu_blocks_override": 512}


@pytest.fixture(scope="module")
def plain() -> list[tuple[object, str, str | None]]:
    with LLM(**PLAIN) as llm:
        return generate(llm, COUNT)  # type: ignore[return-value]


def test_generations_are_valid(plain: list[tuple[dict[str, object], str, str | None]]) -> None:
    for schema, text, reason in plain:
        assert reason == "stop"
        assert is_valid(schema, text), text


@pytest.mark.parametrize(
    "fields",
    [
        {"async_scheduling": True},
        {"num_scheduler_steps": 4},
        {"max_num_batched_tokens": 16, "max_num_seqs": 8},  # chunked prefill
        {"num_gpu_blocks_override": 20},  # preemption by recompute
        {"num_gpu_blocks_override": 20, "swap_space": 0.05, "preemption_mode": "swap"},
        {"enforce_eager": True, "max_num_seqs": 1},
    ],
)
def test_the_same_however_it_is_computed(
    fields: dict[str, object], plain: list[tuple[dict[str, object], str, str | None]]
) -> None:
    with LLM(**{**PLAIN, **fields}) as llm:
        assert generate(llm, COUNT) == plain
        if "num_gpu_blocks_override" in fields:
            assert llm.stats.scheduler.num_preemptions > 0
        llm.call("check_integrity")
