"""A small budget of what `make fuzz` does for longer."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import combinations, replay, speculation, streams


def test_each_request_gets_the_answer_it_gets_alone() -> None:
    """In worlds that preempt, share prefixes, and have steps that fail."""
    outcomes = replay.run("tests.fuzz.combinations", combinations.case, 11, seed=8)
    assert outcomes["preempted"] > 2
    assert outcomes["hits"] > 2
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


def test_streams_say_what_whole_answers_say() -> None:
    outcomes = replay.run("tests.fuzz.streams", streams.case, 4, seed=0)
    assert outcomes["served"] > 2


@pytest.mark.parametrize("method", speculation.METHODS)
def test_drafts_change_no_answer(method: str) -> None:
    """A cell of `python -m tests.fuzz.speculation`."""
    found = speculation.run(speculation.Cell(method, 8, 0.7), num_prompts=6, seed=5)
    assert found.drafted > 0
    assert found.token_differences == found.logprob_differences == 0
