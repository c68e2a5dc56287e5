"""How many drafts each request may have."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from numpy.typing import NDArray

from quire.core.batch import ModelOutput, SchedulerOutput, StepTimes, block_columns
from quire.core.config import SchedulerConfig, SpeculativeConfig
from quire.core.cost import RooflineCost
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler.depth import INTERVAL, PROBE, Depth
from quire.scheduler.running import Admitted, RunningBatch
from quire.scheduler.steps import InFlight

MEMORY_BOUND = RooflineCost(1e9, 1e4, 1e8, 1e7, 1e3, 1e10, 1e13, 1e13, 1e-4)
"""Rows cost next to nothing."""
COMPUTE_BOUND = RooflineCost(1e6, 1e4, 1e9, 1e7, 1e3, 1e10, 1e10, 1e13, 1e-4)
"""Each row costs as much as the first."""


def batch(size: int, max_tokens: int = 100) -> RunningBatch:
    """Requests that decode; each has computed all tokens but its last."""
    running = RunningBatch(64, 16)
    admitted = []
    for number in range(size):
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(str(number), [1] * 11, params, arrival_time=0.0, max_model_len=1000)
        request.order = (0, number)
        admitted.append(Admitted(request, [0], 10, 1, 0, 0))
    running.add(admitted)
    return running


def depth(cost: RooflineCost | None, **fields: object) -> Depth:
    config = SpeculativeConfig("ngram", 4, **fields)  # type: ignore[arg-type]
    return Depth(SchedulerConfig(1000, 64, 512), config, cost)


def choose(depth: Depth, running: RunningBatch, budget: int = 512) -> list[int]:
    decodes: NDArray[np.bool_] = np.ones(len(running), dtype=bool)
    return depth.choose(running, decodes, budget, mixed=False).tolist()


def land(
    depth: Depth,
    running: RunningBatch,
    drafted: list[int],
    accepted: list[int],
    seconds: float = 0.0,
    draft_seconds: float = 0.0,
    now: float = 0.0,
) -> None:
    """Have a step of all requests land."""
    ones = np.ones(len(running), dtype=np.int64)
    step = SchedulerOutput(
        1, running.request_ids, ones, running.num_computed.copy(), block_columns([]), [], [], 1
    )
    tokens = [array("i") for _ in drafted]
    flight = InFlight(
        step, running.requests, tokens, ones, [], [], running.version, slice(None), 0.0, []
    )
    result = ModelOutput(
        np.zeros((len(running), 1), dtype=np.int64),
        drafted=np.array([drafted]),
        accepted=np.array([accepted]),
        times=StepTimes(model=seconds),
        draft_seconds=draft_seconds,
    )
    depth.observe(flight, result, running, now)


def test_rows_that_cost_nothing_are_drafted_as_far_as_they_may() -> None:
    assert choose(depth(MEMORY_BOUND), batch(3)) == [4, 4, 4]
    assert choose(depth(MEMORY_BOUND), batch(3, max_tokens=3)) == [2, 2, 2]  # the last one is free
    assert choose(depth(MEMORY_BOUND), batch(1), budget=3) == [2]


def test_rows_that_cost_a_step_each_are_not_drafted() -> None:
    assert choose(depth(COMPUTE_BOUND), batch(3)) == [0, 0, 0]


def test_without_a_cost_or_with_fixed_numbers_nothing_is_predicted() -> None:
    assert choose(depth(None), batch(2)) == [4, 4]
    fixed = depth(COMPUTE_BOUND, num_speculative_tokens_per_batch_size=((1, 2, 3), (4, 9, 1)))
    assert [choose(fixed, batch(size))[0] for size in (1, 2, 3, 4, 9, 10)] == [3, 3, 0, 1, 1, 0]


def test_a_poor_drafter_stops_and_is_tried_again() -> None:
    cost = RooflineCost(1e8, 1e4, 2e8, 1e7, 1e3, 1e10, 1e11, 1e13, 1e-4)
    poor, running = depth(cost), batch(2)
    assert min(choose(poor, running)) > 0
    for _ in range(100):
        land(poor, running, [4, 4], [0, 0])
    numbers = [choose(poor, running) for _ in range(2 * INTERVAL * PROBE + 1)]
    assert numbers[INTERVAL] == [0, 0]
    tried = [each for each in numbers[INTERVAL:] if any(each)]
    assert {tuple(each) for each in tried} == {(1, 0), (0, 1)}
    assert len(tried) <= 2 * INTERVAL
    for _ in range(400):
        land(poor, running, [1, 1], [1, 1])
    for _ in range(INTERVAL):
        again = choose(poor, running)
    assert min(again) >= 1


def test_each_request_has_its_own_rate() -> None:
    cost = RooflineCost(1e8, 1e4, 1e8, 1e7, 1e3, 1e10, 1e11, 1e13, 1e-4)
    mixed, running = depth(cost), batch(2)
    for _ in range(50):
        land(mixed, running, [4, 4], [4, 0])
    running.version = -1  # a new choice
    assert choose(mixed, running) == [4, 0]


def test_slow_drafting_and_slow_steps_count() -> None:
    quick, slow, running = depth(MEMORY_BOUND), depth(MEMORY_BOUND), batch(1)
    for _ in range(50):
        land(quick, running, [4], [3], 0.11, 0.001)
        land(slow, running, [4], [3], 0.9, 0.8)
    assert choose(quick, running) == [4]
    assert choose(slow, running)[0] < 4


def test_a_size_that_was_slow_once_is_tried_again() -> None:
    learned, running = depth(MEMORY_BOUND), batch(1)
    for _ in range(30):
        land(learned, running, [0], [0], 0.1)
    for _ in range(30):
        land(learned, running, [4], [4], 0.9)
    assert choose(learned, running)[0] < 4
    for _ in range(600):
        land(learned, running, [0], [0], 0.1)
    running.version = -1  # a new choice
    assert choose(learned, running) == [4]


def test_time_between_steps_counts() -> None:
    """With much of it, a slower step that yields more pays."""
    cost = RooflineCost(1e8, 1e4, 1e8, 1e7, 1e3, 1e10, 2e10, 1e13, 1e-4)
    chosen = []
    for pause in (0.0, 0.01):
        learned, running = depth(cost), batch(1)
        for step in range(50):
            land(learned, running, [1], [1], 0.0117, 0.0, step * (0.0117 + pause))
        running.version = -1  # a new choice
        chosen += choose(learned, running)
    assert chosen[0] < chosen[1]


def test_counters() -> None:
    counted, running = depth(None), batch(3)
    land(counted, running, [4, 2, 0], [2, 2, 0])
    stats = counted.stats
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 6, 4)
    assert stats.num_accepted_tokens_per_pos == [2, 2, 0, 0]
    assert running.drafted.tolist() == [3, 2, 0]  # the fourth draft was behind a wrong one
    assert running.accepted.tolist() == [2, 2, 0]


@pytest.mark.parametrize("mixed", [False, True])
def test_prompts_keep_their_share_of_a_step(mixed: bool) -> None:
    running = batch(4)
    decodes = np.ones(4, dtype=bool)
    drafts = depth(None).choose(running, decodes, 4 + 10, mixed=mixed)
    assert int(drafts.sum()) == (5 if mixed else 10)
