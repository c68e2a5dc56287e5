"""The step's token budget: prompts take what decoding leaves over, as far as was learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from quire.core.batch import Column
from quire.core.cost import RooflineCost
from quire.scheduler.budget import LATE, MEMORY, OUTLIER, PATIENT, STALE, TRIALS, StepBudget

STRETCH = 1.75
GUESS = RooflineCost(1e9, 1e5, 1e9, 1e8, 1e5, 1e10, 1e11, 1e11)


@dataclass(frozen=True)
class Machine:
    """What steps really take: reading weights, or computing rows, whichever is longer."""

    read: float
    row: float
    fixed: float = 0.0

    def seconds(self, num_tokens: int) -> float:
        return self.fixed + max(self.read, self.row * num_tokens)


def columns(*values: int) -> Column:
    return np.array(values, dtype=np.int64)


def settle(budget: StepBudget, machine: Machine, num_decodes: int, steps: int = 300) -> int:
    """Run decoding sequences beside an endless prompt; the last budget that is no trial."""
    decoding = columns(*[1] * num_decodes)
    contexts = columns(*[100] * num_decodes)
    last = [0, 0]
    for step in range(steps):
        if step % 3 == 0:
            budget.observe(decoding, contexts, machine.seconds(num_decodes))
            continue
        tokens = budget.tokens(np.append(decoding, 4096), np.append(contexts, 0))
        scheduled = np.append(decoding, tokens - num_decodes)
        budget.observe(scheduled, np.append(contexts, 0), machine.seconds(tokens))
        last = [last[1], tokens]
    return min(last)


def beside_a_stream(speeds: Sequence[float], num_decodes: int = 8) -> tuple[float, float]:
    """Decode beside an endless prompt on a machine that is slower by `speeds[i]` in step i.

    Returns:
        The prompt's tokens over those that the limit promises, and the mean stretch.
    """
    budget, machine = new_budget(), Machine(read=0.0, row=1e-3, fixed=0.03)
    settle(budget, machine, num_decodes)
    decoding, contexts = columns(*[1] * num_decodes), columns(*[100] * num_decodes)
    alone = machine.seconds(num_decodes)
    chunk, stretches = 0, list[float]()
    for speed in speeds:
        total = budget.tokens(np.append(decoding, 4096), np.append(contexts, 0))
        scheduled, computed = decoding, contexts
        if total > num_decodes:
            scheduled, computed = np.append(decoding, total - num_decodes), np.append(contexts, 0)
        budget.observe(scheduled, computed, speed * machine.seconds(total))
        chunk += total - num_decodes
        stretches.append(machine.seconds(total) / alone)
    promised = (STRETCH * alone - machine.fixed) / machine.row - num_decodes
    return chunk / (promised * sum(stretches) / STRETCH), sum(stretches) / len(stretches)


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


@pytest.mark.parametrize(
    "speeds",
    [
        pytest.param([1.0] * 800, id="as before"),
        pytest.param([1.3] * 800, id="slower"),
        pytest.param([3.0] * 800, id="much slower"),
        pytest.param([1 / 3] * 800, id="much faster"),
        pytest.param(([3.0] * 100 + [1.0] * 100) * 4, id="in turns"),
    ],
)
def test_a_machine_that_becomes_slower_or_faster_harms_neither_prompts_nor_streams(
    speeds: list[float],
) -> None:
    progress, stretch = beside_a_stream(speeds)
    assert 0.8 < progress < 1.15
    assert stretch < 1.1 * STRETCH


def test_the_least_step_with_a_prompt_is_measured_as_mixed() -> None:
    """Else prompts that were slow once would get one token per step for good."""
    budget = StepBudget(Exact(), max_tokens=100, max_itl_stretch=1.0)
    observe_decodes(budget, 2, 1.0)
    scheduled, computed = columns(1, 1, 2), columns(9, 9, 0)
    wanted = columns(1, 1, 50)
    assert budget.tokens(wanted, computed) == scheduled.sum()
    budget.observe(scheduled, computed, 8.0)
    assert budget.mixed_seconds(2, 0, 2, 0) == 8.0
    assert budget.decode_seconds(2, 0) == 2.0


def test_decoding_is_measured_alone_now_and_then_also_if_it_is_not_reported() -> None:
    budget = StepBudget(Exact(), max_tokens=100, max_itl_stretch=3.5)
    wanted, computed = columns(1, 1, 50), columns(9, 9, 0)
    for _ in range(3):
        for _ in range(LATE):
            assert budget.tokens(wanted, computed) > 2
            budget.observe(columns(1, 1, 5), computed, 7.0)
        assert budget.tokens(wanted, computed, reads=True) > 2, "its time would be no measurement"
        assert budget.tokens(wanted, computed) == 2


def test_prompts_are_never_starved() -> None:
    slow = new_budget()
    settle(slow, Machine(read=0.001, row=0.1), 4)
    assert 2 + 2 <= slow.tokens(columns(1, 1, 500), columns(9, 9, 0)) <= 8  # which is new
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
    images = budget.tokens(columns(1, *[4096] * 7), columns(100, *[0] * 7), pictured=7)
    assert images == pytest.approx(alone, rel=0.1)
    prompts = columns(1, *[4096] * PATIENT), columns(100, *[0] * PATIENT)
    assert budget.tokens(*prompts, resumed=PATIENT) == pytest.approx(alone, rel=0.1)
    others = {"waiting": 6 * PATIENT, "resumed": 7 * PATIENT}
    assert budget.tokens(*prompts, **others) == pytest.approx(crowd, rel=0.1)


def test_prompts_with_images_and_the_tower_share_what_decoding_leaves() -> None:
    budget = StepBudget(Exact(), max_tokens=100, max_itl_stretch=4.0)
    for asked, reads, tokens, seconds in (
        ((1, 1, 90), False, 8, 1.5),
        ((1, 1, 90), True, 5, 3.0),
        ((1, 1), True, 5, 6.0),
    ):
        wanted, pictured = columns(*asked), len(asked) - 2
        assert budget.tokens(wanted, wanted * 0, pictured=pictured, reads=reads) == tokens
        given = columns(1, 1, *[tokens - 2] * pictured)
        assert budget.seconds_left(given, wanted * 0) == seconds
    wanted = columns(1, 1, 90)
    assert budget.tokens(wanted, wanted * 0, reads=True) == 8, "a text does not wait for images"


@dataclass(frozen=True)
class Exact:
    """Seconds that tell every argument: whole numbers, so that sums of them are exact."""

    per_token: float = 1.0
    per_seq: float = 0.0
    per_context: float = 0.0
    per_pair: float = 0.0

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        return (
            self.per_token * num_tokens
            + self.per_seq * num_seqs
            + self.per_context * context_tokens
            + self.per_pair * attended
        )

    def copy_seconds(self, num_tokens: int) -> float:
        return 0.0

    def step(self, rows: list[tuple[int, int]]) -> float:
        """Of a step whose rows compute so many tokens behind so many, counted token by token."""
        pairs = sum(behind + i + 1 for tokens, behind in rows for i in range(tokens))
        total = sum(tokens for tokens, _ in rows)
        context = sum(tokens + behind for tokens, behind in rows)
        return self.seconds(total, len(rows), context, pairs)


DIGITS = Exact(1.0, 1e3, 1e6, 2.0**36)
"""Of small steps, no argument's part reaches another's."""


@pytest.mark.parametrize(("num_decodes", "behind", "chunk"), [(1, 0, 1), (3, 7, 4), (5, 2, 9)])
def test_a_step_is_predicted_by_all_it_computes(num_decodes: int, behind: int, chunk: int) -> None:
    budget = StepBudget(DIGITS, max_tokens=100, max_itl_stretch=STRETCH)
    decoding = [(1, 10 + i) for i in range(num_decodes)]
    context = sum(tokens + before for tokens, before in decoding)
    assert budget.decode_seconds(num_decodes, context) == DIGITS.step(decoding)
    mixed = budget.mixed_seconds(num_decodes, context, chunk, behind)
    assert mixed == DIGITS.step([*decoding, (chunk, behind)])


@pytest.mark.parametrize("max_tokens", [12, 40, 400])
@pytest.mark.parametrize("waiting", [0, 1, 5])
@pytest.mark.parametrize("num_prompts", [0, 1, 3])
@pytest.mark.parametrize(("num_decodes", "stretch"), [(1, 2.0), (2, 2.0), (6, 2.0), (6, 1.0)])
def test_the_largest_step_that_keeps_the_pace(
    num_decodes: int, stretch: float, num_prompts: int, waiting: int, max_tokens: int
) -> None:
    cost = Exact(per_token=4.0, per_seq=3.0, per_context=1.0, per_pair=2.0)
    budget = StepBudget(cost, max_tokens=max_tokens, max_itl_stretch=stretch)
    decoding = [(1, 20 + i) for i in range(num_decodes)]
    prompts = [(2 if i else 500, 7 * i + 5) for i in range(num_prompts)]
    wanted, computed = zip(*decoding, *prompts, strict=True)
    crowd = max(1.0, (num_prompts + waiting) / num_decodes)
    behind = prompts[0][1] if prompts else 0
    fits = [
        chunk
        for chunk in range(1, max_tokens)
        if cost.step([*decoding, (chunk, behind)]) <= crowd * stretch * cost.step(decoding)
    ]
    chunk = max([2, num_prompts + 1, *fits])
    found = budget.tokens(columns(*wanted), columns(*computed), waiting)
    assert found == min(max_tokens, num_decodes + chunk)


def test_a_step_that_takes_just_the_limit_is_allowed() -> None:
    budget = StepBudget(Exact(), max_tokens=100, max_itl_stretch=2.0)
    assert budget.tokens(columns(1, 1, 1, 1, 50), columns(9, 9, 9, 9, 0)) == 8


def test_a_new_size_is_tried_once_after_some_steps_of_the_one_before() -> None:
    budget = StepBudget(Exact(), max_tokens=100, max_itl_stretch=3.5)
    wanted, computed = columns(1, 1, 50), columns(9, 9, 0)

    def see(tokens: int) -> None:
        budget.observe(columns(1, 1, tokens - 2), computed, float(tokens))

    for _ in range(TRIALS):
        assert budget.tokens(wanted, computed) == 7
        see(7)
    assert budget.tokens(wanted, computed) == 8  # the next power of two
    see(8)
    for trial in range(1, MEMORY + 1):
        for _ in range(STALE * trial // MEMORY):
            assert budget.tokens(wanted, computed, reads=True) == 7  # and decoding is not measured
            see(7)
        see(7)
        assert budget.tokens(wanted, computed, reads=True) == 8  # not seen of late
        see(8)


def test_one_slow_step_of_a_new_size_is_soon_forgotten() -> None:
    """Else 8 streams leave a prompt 7 tokens per step, because of one with 8 some time ago."""
    budget, machine = new_budget(), Machine(read=0.03, row=1e-5)
    streams, contexts = columns(*[1] * 8), columns(*[100] * 8)
    slow, tokens = 0, 0
    for _ in range(STALE // 2):
        if (tokens := budget.tokens(np.append(streams, 4096), np.append(contexts, 0))) == 8:
            budget.observe(streams, contexts, machine.seconds(8))
            continue
        late = tokens >= 16 and slow == 0
        slow += late
        scheduled, computed = np.append(streams, tokens - 8), np.append(contexts, 0)
        budget.observe(scheduled, computed, machine.seconds(tokens) * (4 if late else 1))
    assert slow == 1
    assert tokens > 200


def observe_decodes(budget: StepBudget, num_seqs: int, ratio: float) -> None:
    """A step of decodes that takes `ratio` times its prediction."""
    computed = columns(*[0] * num_seqs)
    budget.observe(columns(*[1] * num_seqs), computed, ratio * num_seqs)


def observe_mixed(budget: StepBudget, num_tokens: int, ratio: float) -> None:
    """A step of a part of a prompt that takes `ratio` times its prediction."""
    budget.observe(columns(num_tokens), columns(0), ratio * num_tokens)


@pytest.mark.parametrize("observe", [observe_decodes, observe_mixed])
@pytest.mark.parametrize(
    ("smaller", "larger", "from_here"),
    [(4, 16, 16), (2, 16, 8)],  # 8 is as near to 4 as to 16, and nearer to 16 than to 2
)
def test_an_unseen_size_is_like_the_nearest_one_the_smaller_of_two(
    observe: Callable[[StepBudget, int, float], None], smaller: int, larger: int, from_here: int
) -> None:
    budget = StepBudget(Exact(), max_tokens=100, max_itl_stretch=2.0)
    observe(budget, larger, 3.0)
    observe(budget, smaller, 2.0)
    for n in (2, 3, 4, 7, 8, 15, 16, 31, 32, 64):
        scale = 3.0 if n >= from_here else 2.0
        assert budget.decode_seconds(n, 0) == scale * n
        if observe is observe_mixed:
            assert budget.mixed_seconds(1, 0, n - 1, 0) == scale * n
        else:
            assert budget.mixed_seconds(n, 0, 5, 0) == scale * (n + 5)
    observe(budget, from_here - 1, 1e9)
    assert budget.decode_seconds(from_here - 1, 0) <= 2.0 * OUTLIER * (from_here - 1)


def test_an_unknown_time_leaves_what_is_known() -> None:
    budget = StepBudget(Exact(), max_tokens=100, max_itl_stretch=2.0)
    observe_decodes(budget, 4, 1.0)
    observe_decodes(budget, 4, 0.0)
    assert budget.decode_seconds(4, 0) == 4.0


def test_what_was_seen_is_averaged_and_an_outlier_is_cut() -> None:
    budget = StepBudget(Exact(), max_tokens=100, max_itl_stretch=2.0)
    ratios = [1.0, 1.5, 1.25, 1.75] * 6
    average = 0.0
    for i, ratio in enumerate(ratios):
        observe_decodes(budget, 4, ratio)
        average += (ratio - average) / min(i + 1, MEMORY)
        assert budget.decode_seconds(4, 0) == pytest.approx(4 * average, rel=1e-12)
    for ratio, seen in ((1e9, OUTLIER), (1e-9, 1 / OUTLIER)):
        before = budget.decode_seconds(4, 0)
        observe_decodes(budget, 4, ratio)
        after = before + (seen * before - before) / MEMORY
        assert budget.decode_seconds(4, 0) == pytest.approx(after, rel=1e-12)
    before = budget.decode_seconds(64, 0)
    observe_decodes(budget, 64, 1e9)
    assert budget.decode_seconds(64, 0) == pytest.approx(OUTLIER * before, rel=1e-12)


@pytest.mark.parametrize("pause", [STALE, STALE + 1])
def test_what_was_long_not_seen_is_learned_anew(pause: int) -> None:
    budget = StepBudget(Exact(), max_tokens=100, max_itl_stretch=2.0)
    observe_decodes(budget, 16, 1.0)
    for _ in range(3):
        observe_decodes(budget, 4, 1.0)
    for _ in range(pause):
        observe_decodes(budget, 16, 1.0)
    observe_decodes(budget, 4, 1.5)
    first = pause > STALE
    assert budget.decode_seconds(4, 0) == 4 * (1.5 if first else 1.125)


def test_decodes_and_mixed_steps_are_seen_apart_and_stand_in_for_each_other() -> None:
    rows = [(1, 5), (1, 6), (4, 3)]
    scheduled, computed = (columns(*column) for column in zip(*rows, strict=True))
    budget = StepBudget(DIGITS, max_tokens=100, max_itl_stretch=2.0)
    budget.observe(scheduled, computed, 2.0 * DIGITS.step(rows))
    decoding = rows[:2]
    context = sum(tokens + behind for tokens, behind in decoding)
    assert budget.decode_seconds(2, context) == 2.0 * DIGITS.step(decoding)
    budget.observe(columns(1, 1), columns(5, 6), 4.0 * DIGITS.step(decoding))
    assert budget.decode_seconds(2, context) == 4.0 * DIGITS.step(decoding)
    assert budget.mixed_seconds(2, context, 4, 3) == 2.0 * DIGITS.step(rows)
    other = StepBudget(DIGITS, max_tokens=100, max_itl_stretch=2.0)
    other.observe(columns(1, 1), columns(5, 6), 4.0 * DIGITS.step(decoding))
    assert other.mixed_seconds(2, context, 4, 3) == 4.0 * DIGITS.step(rows)
