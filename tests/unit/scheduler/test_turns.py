"""Clients share the prompt tokens of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.request import RequestStatus
from quire.scheduler.budget import SHARED_SECONDS
from quire.scheduler.queue import REACH
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.turns import in_turns, level
from tests.examples import examples
from tests.unit.scheduler.steps import BLOCK, Tokens, make, request, step


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 50), max_size=6), st.integers(0, 200))
@settings(max_examples=examples(100))
def test_parts_are_as_equal_as_the_demands_allow(demand: dict[str, int], budget: int) -> None:
    parts = level(demand, budget)
    assert sum(parts.values()) == min(budget, sum(demand.values()))
    least = min((parts[name] for name in demand if parts[name] < demand[name]), default=None)
    assert all(parts[name] <= demand[name] for name in demand)
    if least is not None:
        assert max(parts.values()) <= least + 1


def test_a_client_spends_its_part_in_order() -> None:
    wanted = np.array([0, 90, 90, 10, 90])
    parts = in_turns(wanted, ["b", "a", "a", "b", "b"], {"c": 5}, 65)
    assert parts.tolist() == [0, 30, 0, 10, 20]


def prefilling(**options: Any) -> Scheduler:
    """Return a scheduler that computes a long prompt of client "a", which has more of them."""
    s = make(num_blocks=999, seqs=8, **options)
    for number in range(4):
        s.add(request(f"{'wxyz'[number]}", 900, client="a"))
    step(s)
    return s


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one(policy: str) -> None:
    s = prefilling(policy=policy, budget=20)
    for number in range(2 * REACH):
        s.add(request(f"b{number}", 8, client=f"b{number % 2}", max_tokens=1))
        assert step(s)[0] == {"w": 12, f"b{number}": 8}


def test_each_client_has_its_part_of_a_step() -> None:
    s = prefilling()
    s.add(request("b", 100, client="b"))
    assert step(s)[0] == {"w": 33, "b": 31}
    s.add(request("c", 12, client="c"))
    assert step(s)[0] == {"w": 26, "b": 26, "c": 12}
    assert s.requests["x"].status is RequestStatus.WAITING
    s.abort(["c"])
    assert step(s)[0] == {"w": 32, "b": 32}
    assert step(s)[0] == {"w": 53, "b": 11}


def test_no_tokens_are_left_for_a_request_that_does_not_fit() -> None:
    s = make(num_blocks=60, seqs=8)
    s.add(request("w", 900, client="a"))
    step(s)
    s.add(request("b", 100, client="b"))
    assert step(s)[0] == {"w": 64}
    s.add(request("x", 8, client="a"))
    assert step(s)[0] == {"w": 64}


def test_steps_are_short_while_another_client_may_come() -> None:
    limits = SchedulerConfig(1000, 8, 600, max_itl_stretch=2.0)
    seconds = SHARED_SECONDS / 100
    s = Scheduler(limits, CacheConfig(BLOCK, 999), Tokens(seconds * 0.899, seconds * 10))
    s.add(request("v", 900, client="a"))
    assert step(s)[0] == {"v": 600}  # the only client
    s.add(request("b", 8, client="b", max_tokens=1))
    assert step(s)[0] == {"v": 35, "b": 8}  # twice the time of two short prompts
    assert step(s)[0] == {"v": 100}
    s.abort(["v"])
    s.add(request("w", 900, client="a"))
    assert step(s)[0] == {"w": 100}
    s.add(request("c", 200, client="c", max_tokens=1))
    assert step(s)[0] == {"w": 51, "c": 49}


def test_steps_of_a_small_model_are_shorter_still() -> None:
    limits = SchedulerConfig(1000, 8, 600, max_itl_stretch=2.0)
    s = Scheduler(limits, CacheConfig(BLOCK, 999), Tokens(0.0001, 0.0004))
    s.add(request("b", 8, client="b", max_tokens=1))
    step(s)
    s.add(request("v", 900, client="a"))
    assert step(s)[0] == {"v": 96}  # 20 times the smallest step


def pooling(budget: int = 600) -> Scheduler:
    """Return a scheduler of whole prompts that has queued those of "a", and knows "b"."""
    limits = SchedulerConfig(500, 64, budget, max_itl_stretch=2.0, whole_prompts=True)
    seconds = SHARED_SECONDS / 100
    s = Scheduler(limits, CacheConfig(BLOCK, 999), Tokens(seconds * 0.899, seconds * 10))
    s.add(request("v", 8, client="b", max_tokens=1))
    step(s)
    for number in range(20):
        s.add(request(f"{'abcdefghijklmnopqrst'[number]}-", 50, client="a", max_tokens=1))
    return s


def test_whole_prompts_leave_steps_short() -> None:
    s = pooling()
    assert step(s)[0] == {"a-": 50, "b-": 50}
    s.add(request("x", 8, client="b", max_tokens=1))
    served = [step(s)[0] for _ in range(10)]
    assert {"x": 8} in served[:2]  # little longer than two short ones
    assert all(served)


def test_a_whole_prompt_is_never_too_long() -> None:
    s = pooling()
    s.add(request("y", 450, client="b", max_tokens=1))
    served = [step(s)[0] for _ in range(12)]
    assert {"y": 450} in served
    assert not s.requests


def test_prompts_of_others_do_not_slow_a_stream_as_its_own_do() -> None:
    def tokens(client: str) -> int:
        limits = SchedulerConfig(1000, 16, 200, max_itl_stretch=4.0)
        s = Scheduler(limits, CacheConfig(BLOCK, 999), Tokens())
        s.add(request("s", 8, client="s", max_tokens=50))
        step(s)
        for name in "pqrstuvw"[:8]:
            s.add(request(f"{name}-", 150, client=client))
        return sum(step(s)[0].values())

    alone, beside = tokens("s"), tokens("a")
    assert beside == 4
    assert alone == 4 * 8
