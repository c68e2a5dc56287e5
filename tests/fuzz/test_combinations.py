"""A small budget of what `make fuzz` does for longer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.system.hardware import detect
from tests.fuzz import combinations, pooling, replay, replicas, speculation, streams
from tests.fuzz.asked import Asked
from tests.fuzz.combinations import difference
from tests.fuzz.engines import World


def test_each_request_gets_the_answer_it_gets_alone() -> None:
    """In worlds that preempt, share prefixes, and have steps that fail."""
    outcomes: Counter[str] = Counter()
    for number in (1, 3, 4, 5, 9, 11, 13, 18):
        outcomes += replay.run("tests.fuzz.combinations", combinations.case, 1, 8, number)
    assert outcomes["preempted"] > 1  # of four; the number of drafts follows the steps' times
    assert outcomes["hits"] > 1
    assert outcomes["drafted"] > 0
    assert sum(count for name, count in outcomes.items() if name.startswith("refused")) < 3


@pytest.mark.slow  # Hypothesis draws each number: a world takes 15 times as long
@settings(
    max_examples=10,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.randoms(use_true_random=False))
def test_what_fails_is_cut_down(random: Random) -> None:
    combinations.case(random)


def test_the_prompt_s_logprobs_survive_the_sequence_that_reports_them() -> None:
    """Found by `make fuzz`: of n sequences the first failed, and the others had none."""
    replay.run("tests.fuzz.combinations", combinations.case, 1, seed=0, first=84)


def test_a_text_s_vector_is_the_one_it_has_alone() -> None:
    outcomes = replay.run("tests.fuzz.pooling", pooling.case, 4, seed=7)
    assert sum(count for name, count in outcomes.items() if name.startswith("refused")) < 3


@pytest.mark.skipif(detect().cores < 2, reason="each replica needs a core")
@pytest.mark.parametrize("number", [1, pytest.param(11, marks=pytest.mark.slow)])
def test_replicas_give_the_answers_of_one_engine(number: int) -> None:
    """Of two that answer, and, slow, of one that computes the other's prompts."""
    replay.run("tests.fuzz.replicas", replicas.case, 1, seed=100, first=number)


def test_streams_say_what_whole_answers_say() -> None:
    outcomes = replay.run("tests.fuzz.streams", streams.case, 3, seed=0, first=5)
    assert outcomes["served"] > 1


@pytest.mark.parametrize(
    "flags",
    [
        {"async_scheduling": True},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"num_scheduler_steps": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_clients_may_leave_at_any_step_of_drafts(flags: dict[str, Any], tmp_path: Path) -> None:
    """Each of them after one more step; all others get their answers, and no block is left."""
    drafts = {"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 64, 4]]}
    most = {"block_size": 8, "max_num_seqs": 12, "num_gpu_blocks_override": 64}
    flags = {**most, "enable_prefix_caching": True, "speculative_config": drafts, **flags}
    asked = [
        Asked(
            [5, 6, 7, number],
            {"max_tokens": 24, "temperature": 1.0, "seed": number, "logprobs": 1},
            comes=number,
            stays=number // 2 + 1 if number % 2 else None,
        )
        for number in range(20)
    ]
    world = World("llama", {"max_model_len": 128, "dtype": "float32"}, flags, asked, oracle=True)
    expected = combinations.alone(world, tmp_path)
    engine, got = combinations.together(world, tmp_path, expected)
    assert not [f for pair in zip(got, expected, strict=True) if (f := difference(*pair))]
    cut = [sum(len(each["tokens"]) for each in answers) for answers in got[1::2]]
    assert len({*cut} - {24}) > 3  # at different places
    stats = engine.scheduler.stats().spec_decoding
    assert stats.num_accepted_tokens > 100
    assert stats.num_draft_tokens > stats.num_accepted_tokens


@pytest.mark.parametrize("method", speculation.METHODS)
def test_drafts_change_no_answer(method: str) -> None:
    """A cell of `python -m tests.fuzz.speculation`."""
    found = speculation.run(speculation.Cell(method, 8, 0.7), num_prompts=6, seed=5)
    assert found.drafted > 0
    assert found.token_differences == found.logprob_differences == 0
