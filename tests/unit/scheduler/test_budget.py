"""The step's token budget: prompts take what decoding leaves over, as far as was learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from quire.core.batch import Column
from quire.core.cost import RooflineCost
from quire.scheduler.budget import StepBudget

STRETCH = 1.75
GUESS = RooflineCost(1e9, 1e5, 1e9, 1e8, 1e5, 1e10, 1e11, 1e11)


@dataclass(frozen=True)
class Machine:
    """What steps really take: reading weights, or computing rows, whichever is longer."""

    read: float
    row: float

    def seconds(self, num_tokens: int) -> float:
        return max(self.read, self.row * num_tokens)


def columns(*values: int) -> Column:
    return np.array(values, dtype=np.int64)


def settle(budget: StepBudget, machine: Machine, num_decodes: int, steps: int = 300) -> int:
    """Run decoding sequences beside an endless prompt; the last budget."""
    decoding = columns(*[1] * num_decodes)
    contexts = columns(*[100] * num_decodes)
    tokens = 0
    for step in range(steps):
        if step % 3 == 0:
            budget.observe(decoding, contexts, machine.seconds(num_decodes))
            continue
        tokens = budget.tokens(np.append(decoding, 4096), np.append(contexts, 0))
        scheduled = np.append(decoding, tokens - num_decodes)
        budget.observe(scheduled, np.append(contexts, 0), machine.seconds(tokens))
    return tokens


def new_budget(max_tokens: int = 2048) -> StepBudget:
    return StepBudget(GUESS, max_tokens=max_tokens, max_itl_stretch=STRETCH)


def test_with_nobody_decoding_the_whole_budget_is_the_prompts() -> None:
    assert new_budget().tokens(columns(4096, 17), columns(0, 0)) == 2048
    assert new_budget().tokens(columns(), columns()) == 2048


@pytest.mark.parametrize("row_ms", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("num_decodes", [1, 8, 30])
def test_it_finds_the_chunk_that_keeps_the_pace(row_ms: float, num_decodes: int) -> None:
    machine = Machine(read=0.04, row=row_ms / 1e3)
    tokens = settle(new_budget(), machine, num_decodes)
    ratio = machine.seconds(tokens) / machine.seconds(num_decodes)
    smallest = machine.seconds(num_decodes + 1) / machine.seconds(num_decodes)
    assert ratio <= max(1.1 * STRETCH, smallest)
    roomier = machine.seconds(tokens + max(2, tokens // 3)) / machine.seconds(num_decodes)
    assert tokens == 2048 or roomier > STRETCH


def test_a_busy_neighbour_is_forgotten() -> None:
    machine = Machine(read=0.04, row=0.0005)
    quiet, disturbed = new_budget(), new_budget()
    settle(disturbed, machine, 8)
    for _ in range(3):
        disturbed.observe(columns(*[1] * 8, 100), columns(*[100] * 8, 0), 5.0)
    assert settle(disturbed, machine, 8) == pytest.approx(settle(quiet, machine, 8), rel=0.3)


def test_prompts_are_never_starved() -> None:
    slow = new_budget()
    settle(slow, Machine(read=0.001, row=0.1), 4)
    assert slow.tokens(columns(1, 1, 500), columns(9, 9, 0)) == 2 + 1
    many = slow.tokens(columns(1, *[500] * 30), columns(9, *[0] * 30))
    assert many >= 31


def test_the_budget_never_exceeds_its_limit() -> None:
    fast = new_budget(max_tokens=40)
    settle(fast, Machine(read=1.0, row=1e-9), 8)
    for num_decodes in (1, 30, 38, 40):
        wanted = columns(*[1] * num_decodes, 4096)
        assert fast.tokens(wanted, wanted * 0) <= 40


def test_unknown_times_teach_nothing() -> None:
    budget, untouched = new_budget(), new_budget()
    budget.observe(columns(1, 1), columns(5, 5), 0.0)
    budget.observe(columns(), columns(), 1.0)
    wanted = columns(1, 1, 400)
    assert budget.tokens(wanted, wanted) == untouched.tokens(wanted, wanted)


def test_a_guess_short_of_arithmetic_holds_nobody_back() -> None:
    slow_cpu = RooflineCost(1.2e9, 1e5, 0.9e9, 0.3e9, 1e5, 2e10, 1.6e11, 8e10)
    for num_decodes in (1, 2, 8):
        budget = StepBudget(slow_cpu, max_tokens=2048, max_itl_stretch=STRETCH)
        assert 500 < settle(budget, Machine(read=5e-4, row=1e-6), num_decodes) < 1000


def test_a_crowd_of_prompts_weighs_more_than_one_who_decodes() -> None:
    budget, machine = new_budget(), Machine(read=0.04, row=0.5e-3)
    settle(budget, machine, 1)
    alone = budget.tokens(columns(1, 4096), columns(100, 0))
    crowd = budget.tokens(columns(1, *[4096] * 7), columns(100, *[0] * 7))
    assert 4 * alone < crowd < 10 * alone
    assert budget.tokens(columns(1, 4096), columns(100, 0), waiting=6) == pytest.approx(
        crowd, rel=0.1
    )
