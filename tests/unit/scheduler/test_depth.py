"""How many drafts each request may have."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from numpy.typing import NDArray

from quire.core.batch import ModelOutput, SchedulerOutput, StepTimes, block_columns
from quire.core.config import LOGITS_ROWS, SchedulerConfig, SpeculativeConfig
from quire.core.cost import RooflineCost, StepCost
from quire.core.request import Request, RequestStatus
from quire.core.sampling_params import SamplingParams
from quire.scheduler.depth import (
    INTERVAL,
    MEMORY,
    PAUSE,
    PRIOR,
    PROBE,
    STALE,
    TRIAL,
    WEIGHT,
    Depth,
)
from quire.scheduler.running import Admitted, RunningBatch
from quire.scheduler.steps import ALL_ROWS, InFlight

MEMORY_BOUND = RooflineCost(1e9, 1e4, 1e8, 1e7, 1e3, 1e10, 1e13, 1e13, 1e-4)
"""Rows cost next to nothing."""
COMPUTE_BOUND = RooflineCost(1e6, 1e4, 1e9, 1e7, 1e3, 1e10, 1e10, 1e13, 1e-4)
"""Each row costs as much as the first."""


def batch(size: int, max_tokens: int = 100) -> RunningBatch:
    """Requests that decode; each has computed all tokens but its last."""
    running = RunningBatch(64, 16, 1)
    admitted = []
    for number in range(size):
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(str(number), [1] * 11, params, arrival_time=0.0, max_model_len=1000)
        request.order = (0, number)
        admitted.append(Admitted(request, [0], 10, 1, 0, 0))
    running.add(admitted)
    return running


def depth(cost: StepCost | None, most: int = 4, seats: int = 64, **fields: object) -> Depth:
    config = SpeculativeConfig("ngram", most, **fields)  # type: ignore[arg-type]
    return Depth(SchedulerConfig(1000, seats, 512), config, cost)


def choose(depth: Depth, running: RunningBatch, budget: int = 512) -> list[int]:
    decodes: NDArray[np.bool_] = np.ones(len(running), dtype=bool)
    return depth.choose(running, decodes, budget, mixed=False).tolist()


def land(
    depth: Depth,
    running: RunningBatch,
    drafted: list[int] | list[list[int]] | None,
    accepted: list[int] | list[list[int]] | None,
    seconds: float = 0.0,
    draft_seconds: float = 0.0,
    now: float = 0.0,
) -> None:
    """Have a step of all requests land."""
    ones = np.ones(len(running), dtype=np.int64)
    step = SchedulerOutput(
        1, running.request_ids, ones, running.num_computed.copy(), block_columns([]), [], [], 1
    )
    tokens = [array("i") for _ in running.requests]
    flight = InFlight(
        step, running.requests, tokens, ones, [], [], running.version, ALL_ROWS, 0.0, [],
        quiet=False,
    )  # fmt: skip
    drafts = None if drafted is None else np.atleast_2d(drafted)
    result = ModelOutput(
        np.zeros((len(running), 1), dtype=np.int64),
        num_passes=1 if drafts is None else len(drafts),
        drafted=drafts,
        accepted=None if accepted is None else np.atleast_2d(accepted),
        times=StepTimes(model=seconds),
        draft_seconds=draft_seconds,
    )
    depth.observe(flight, result, now)


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


def test_only_a_choice_of_no_drafts_holds() -> None:
    none, running = depth(COMPUTE_BOUND), batch(2)
    choose(none, running)
    assert none.pause(running) == PAUSE
    running.version += 1
    assert none.pause(running) == 0
    choose(none, running)
    assert none.pause(running) == PAUSE
    none.choose(running, np.array([True, False]), 512, mixed=False)  # one has a prompt
    assert none.pause(running) == 0
    some = depth(None)
    assert choose(some, running, budget=2) == [0, 0]  # no room today
    assert some.pause(running) == 0


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
    assert mixed.pause(running) == 0


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
    for step in range(STALE + 1):
        running.version -= 1  # a new choice
        assert choose(learned, running)[0] < 4, step
        land(learned, running, [0], [0], 0.1)
    running.version -= 1
    assert choose(learned, running) == [4]


def test_a_choice_of_a_new_size_holds_for_a_trial() -> None:
    learned, running = depth(MEMORY_BOUND), batch(1)
    assert choose(learned, running) == [4]
    for _ in range(TRIAL - 1):
        land(learned, running, [4], [0], 1.0, 0.9)
        assert choose(learned, running) == [4]
    land(learned, running, [4], [0], 1.0, 0.9)
    chosen = [choose(learned, running)[0] for _ in range(INTERVAL + 1)]
    assert chosen[0] < 4
    assert chosen[:INTERVAL] == chosen[:1] * INTERVAL


def test_a_choice_of_a_known_size_holds_for_all_its_steps() -> None:
    """Steps of 3 tokens are known, those of 4 are not."""
    learned, running = depth(MEMORY_BOUND, most=2), batch(1)
    assert choose(learned, running) == [2]
    land(learned, running, [2], [2], 0.1)
    running.version -= 1  # a new choice
    assert choose(learned, running) == [2]
    for _ in range(INTERVAL - 1):
        land(learned, running, [2], [0], 1.0, 0.9)
        assert choose(learned, running) == [2]
    land(learned, running, [2], [0], 1.0, 0.9)
    assert choose(learned, running) != [2]


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
    land(counted, running, [4, 2, 0], [2, 2, 0], 1.0)
    stats = counted.stats
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 6, 4)
    assert stats.num_accepted_tokens_per_pos == [2, 2, 0, 0]
    # The fourth draft was behind a wrong one.
    assert [(r.drafts_tested, r.drafts_right) for r in running.requests] == [(3, 2), (2, 2), (0, 0)]


def test_drafts_of_a_request_that_has_ended_do_not_count() -> None:
    counted, running = depth(None), batch(2)
    running.requests[1].status = RequestStatus.FINISHED
    land(counted, running, [4, 4], [2, 3])
    stats = counted.stats
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 4, 2)
    assert [request.drafts_tested for request in running.requests] == [3, 0]
    assert running.requests[1].num_draft_tokens == 0


def test_steps_of_a_pause_count_as_steps() -> None:
    """A new choice follows `INTERVAL` of them; the time since the last one is no overhead."""
    never, running = depth(COMPUTE_BOUND), batch(1)
    first = []
    for _ in range(PROBE):
        first += choose(never, running)
        for _ in range(INTERVAL - 2):
            never.rest(0.0)
        assert choose(never, running) == first[-1:]
    assert first == [0] * (PROBE - 1) + [1]
    rested = depth(MEMORY_BOUND)
    land(rested, running, None, None, 1.0, now=10.0)
    rested.rest(20.0)
    land(rested, running, None, None, 1.0, now=21.5)
    assert rested._overhead == 0.5 * WEIGHT


@pytest.mark.parametrize("mixed", [False, True])
def test_prompts_keep_their_share_of_a_step(mixed: bool) -> None:
    running = batch(4)
    decodes = np.ones(4, dtype=bool)
    drafts = depth(None).choose(running, decodes, 4 + 10, mixed=mixed)
    assert int(drafts.sum()) == (5 if mixed else 10)


def test_what_a_step_has_room_for() -> None:
    """A draft is a token of the budget and a row of logits; nobody drafts behind its end."""
    seats = LOGITS_ROWS + 30
    for limit in (8, seats):
        sized = depth(None, seats=limit)
        assert sum(choose(sized, batch(60), budget=10**6)) == max(LOGITS_ROWS, limit) - 60
    running = batch(4, max_tokens=6)
    running.num_tokens += [0, 2, 4, 5]
    assert choose(depth(MEMORY_BOUND), running) == [4, 3, 1, 0]
    prompt = np.array([True, False, True, True])
    assert depth(MEMORY_BOUND).choose(running, prompt, 512, mixed=False).tolist() == [4, 0, 1, 0]
    assert choose(depth(None), running, budget=4 + 5) == [4, 1, 0, 0]
    ended = depth(MEMORY_BOUND)
    for _ in range(INTERVAL * PROBE):
        assert choose(ended, batch(2, max_tokens=1)) == [0, 0]


def test_when_it_chooses_anew_and_when_it_probes() -> None:
    """At every `INTERVAL`-th step, and every `PROBE`-th time one request tries one draft."""
    never, running = depth(COMPUTE_BOUND), batch(3)
    steps = [choose(never, running) for _ in range(3 * PROBE * INTERVAL)]
    none, idle = [0, 0, 0], (PROBE - 1) * INTERVAL
    turns = [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert steps == [each for turn in turns for each in [none] * idle + [turn] * INTERVAL]
    once = depth(MEMORY_BOUND)
    assert choose(once, running) == [4, 4, 4]
    for _ in range(100):
        land(once, running, [4, 4, 4], [0, 0, 0], 1.0, 0.9)
    for _ in range(TRIAL - 1):
        assert choose(once, running) == [4, 4, 4]
    assert choose(once, running) != [4, 4, 4]


class Line:
    """Seconds that tell every argument."""

    def __init__(self, base: float, weights: list[float], scale: float = 1.0) -> None:
        self.base, self.weights = scale * base, [scale * weight for weight in weights]

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        assert attended is not None
        counts = num_tokens, num_seqs, context_tokens, attended
        return self.base + sum(w * n for w, n in zip(self.weights, counts, strict=True))

    def copy_seconds(self, num_tokens: int) -> float:
        return 0.0


def test_a_draft_that_gains_nothing_is_not_made() -> None:
    """Of a rate of 3/4: 1 token in 4 seconds, or 1.75 in 7."""
    assert choose(depth(Line(1.0, [3.0, 0.0, 0.0, 0.0]), most=1), batch(1)) == [0]
    assert choose(depth(Line(1.0, [2.9, 0.0, 0.0, 0.0]), most=1), batch(1)) == [1]


def test_the_wait_for_a_probe_begins_anew_when_drafts_pay() -> None:
    cost = Line(1.0, [9.0, 0.0, 0.0, 0.0])
    learned, running = depth(cost, most=1), batch(1)

    def chosen(seconds_per_token: float) -> int:
        cost.weights[0] = seconds_per_token
        running.version += 1
        return choose(learned, running)[0]

    assert [chosen(9.0) for _ in range(PROBE - 1)] == [0] * (PROBE - 1)
    assert chosen(0.1) == 1
    assert [chosen(9.0) for _ in range(PROBE)] == [0] * (PROBE - 1) + [1]


def test_a_prediction_that_was_never_measured_counts_as_it_is() -> None:
    """With 3 seconds between steps: 1 token in 4 + 3 seconds, or 1.75 in 8.5 + 3."""
    for slower, drafts in ((1.0, 1), (2.0, 0)):
        learned, running = depth(Line(-0.5, [4.5, 0.0, 0.0, 0.0], slower), most=1), batch(1)
        for now in (24.0, 72.0):
            land(learned, running, [[0], [0]], [[0], [0]], 24.0, 0.0, now)
        assert choose(learned, running) == [drafts]


def test_when_old_drafts_begin_to_count_half() -> None:
    learned, running = depth(None), batch(1)
    for _ in range(int(MEMORY - PRIOR[0])):
        land(learned, running, [1], [1])
    assert learned._tested[0] == MEMORY
    land(learned, running, [1], [1])
    assert learned._tested[0] == (MEMORY + 1) / 2
    assert learned._right[0] == (MEMORY + 1 - PRIOR[0] + PRIOR[1]) / 2
