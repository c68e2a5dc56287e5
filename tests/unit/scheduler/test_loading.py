"""Requests whose blocks come back from the host tier: admitted in one step, running in the next."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.config import CacheConfig, SchedulerConfig, TierConfig
from quire.core.cost import StepCost
from quire.core.images import ImageSpan
from quire.core.options import RequestInputs
from quire.core.request import Request, RequestStatus
from quire.kv.host_tier import HostTier
from quire.kv.stored import Stored
from quire.scheduler.image_chunks import ImageChunks
from quire.scheduler.loading import Loading
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.tier_cost import TierCost
from tests.unit.scheduler.steps import request, sampled

BLOCK = 16


def make(
    num_blocks: int,
    tiers: TierConfig,
    *,
    seats: int = 4,
    mode: str = "swap",
    cost: StepCost | None = None,
) -> Scheduler:
    cache = CacheConfig(BLOCK, num_blocks, tiers=tiers)
    return Scheduler(SchedulerConfig(1000, seats, 200, preemption_mode=mode), cache, cost)  # type: ignore[arg-type]


class Copying:
    """A step takes a second; copying a block takes so many."""

    def __init__(self, block_seconds: float) -> None:
        self.block_seconds = block_seconds

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        return 1.0

    def copy_seconds(self, num_tokens: int) -> float:
        return self.block_seconds * num_tokens / BLOCK


def compute(
    s: Scheduler,
    step: SchedulerOutput,
    failed: list[int] | None = None,
    copy_seconds: float = 0.0,
) -> None:
    """Take in a step whose model always says 9."""
    ends = step.num_computed_tokens + step.num_scheduled_tokens
    rows = [
        [9] if end >= s.requests[name].num_tokens else []
        for name, end in zip(step.request_ids, ends.tolist(), strict=True)
    ]
    result = ModelOutput(token_columns(rows), failed_loads=failed or [], copy_seconds=copy_seconds)
    s.update(step, result, 0.0)
    s.check_integrity()


def finish(s: Scheduler) -> None:
    for _ in range(200):
        if not s.has_unfinished():
            return
        compute(s, s.schedule(0.0))
    raise AssertionError("somebody starves")


def evicted(cost: StepCost | None = None, blocks: int = 8) -> tuple[Scheduler, Request]:
    """A scheduler that has served a prompt and evicted it, and the same prompt again.

    Args:
        blocks: of the request that evicted it; one of the 8 was free.
    """
    s = make(8, TierConfig(num_offload_slots=8), cost=cost)
    s.add(request("a1", 7 * BLOCK, max_tokens=1))
    finish(s)
    s.add(request("b", (blocks - 1) * BLOCK + 8, max_tokens=1))
    finish(s)
    again = request("a2", 7 * BLOCK, max_tokens=2)
    s.add(again)
    return s, again


def test_a_request_runs_in_the_step_after_its_loads() -> None:
    s, again = evicted()
    loading = s.schedule(0.0)
    assert loading.empty
    assert len(loading.block_copies.loads) == 6
    assert again.num_cached_tokens == 6 * BLOCK
    compute(s, loading)
    assert len(s.kv.find_prefix(request("a3", 7 * BLOCK))) == 6  # others may share them now
    running = s.schedule(0.0)
    assert running.request_ids == ["a2"]
    assert running.num_computed_tokens.tolist() == [6 * BLOCK]
    assert running.num_scheduled_tokens.tolist() == [BLOCK]
    compute(s, running)
    finish(s)
    assert s.stats().host_tier is not None


def test_a_loaded_request_runs_though_the_others_only_decode() -> None:
    s = make(16, TierConfig(num_offload_slots=16))
    for name, length in (("a1", 7 * BLOCK), ("b", 15 * BLOCK + 8)):
        s.add(request(name, length, max_tokens=1))
        finish(s)
    s.add(request("c", 1, max_tokens=40))
    compute(s, s.schedule(0.0))
    s.add(request("a2", 7 * BLOCK, max_tokens=2))
    compute(s, s.schedule(0.0))
    assert s.running.quiet > 0
    assert s.schedule(0.0).request_ids == ["c", "a2"]


def test_who_needs_what_is_being_loaded_waits_for_it() -> None:
    s, _ = evicted()
    s.add(request("a3", 7 * BLOCK, max_tokens=2))
    loading = s.schedule(0.0)
    assert len(loading.block_copies.loads) == 6
    compute(s, loading)
    finish(s)
    assert s.kv.tier.stats().loaded == 6


def test_a_step_loads_no_more_prefixes_than_it_may_compute_tokens() -> None:
    s = make(32, TierConfig(num_offload_slots=64))
    for name in "abc":
        s.add(request(name, 9 * BLOCK, max_tokens=1))
        finish(s)
    s.add(request("z", 31 * BLOCK, max_tokens=1))  # evicts them all
    finish(s)
    for name in ("a2", "b2", "c2"):
        s.add(request(name, 9 * BLOCK, max_tokens=1))
    first = s.schedule(0.0)
    assert len(first.block_copies.loads) == 16  # two of them: the budget is 200 tokens
    compute(s, first)
    finish(s)
    assert s.kv.tier.stats().loaded == 24


def test_a_load_reserves_blocks_for_the_rest_of_its_prompt() -> None:
    cache = CacheConfig(BLOCK, 12, tiers=TierConfig(num_offload_slots=12))
    s = Scheduler(SchedulerConfig(1000, 4, 2 * BLOCK), cache)
    for name, length in (("a1", 5), ("b", 12)):
        s.add(request(name, length * BLOCK - 8, max_tokens=1))
        finish(s)
    for name, length in (("a2", 10), ("c", 4)):
        s.add(request(name, length * BLOCK - 8, max_tokens=1))
    loading = s.schedule(0.0)
    assert s.schedule(0.0).empty  # nor while it loads
    assert s.kv.tables.keys() == {"a2"}
    compute(s, loading)
    assert s.schedule(0.0).request_ids == ["a2"]  # nor with its first chunk
    assert s.kv.tables.keys() == {"a2"}


@pytest.mark.parametrize(("budget", "given"), [(40, [40]), (50, [50]), (51, [50, 1])])
def test_a_loaded_request_takes_its_tokens_from_the_budget(budget: int, given: list[int]) -> None:
    cache = CacheConfig(BLOCK, 16, tiers=TierConfig(num_offload_slots=16))
    s = Scheduler(SchedulerConfig(1000, 2, budget), cache)
    for name, length in (("a1", 7 * BLOCK), ("b", 15 * BLOCK + 8)):
        s.add(request(name, length, max_tokens=1))
        finish(s)
    s.add(request("a2", 7 * BLOCK + 50, max_tokens=1))
    loading = s.schedule(0.0)
    for name in "cd":
        s.add(request(name, 8, max_tokens=1))
    beside = s.schedule(0.0)
    assert beside.request_ids == ["c"]  # who loads has a seat
    compute(s, loading)
    compute(s, beside)
    assert s.schedule(0.0).num_scheduled_tokens.tolist() == given


def test_loads_come_with_blocks_for_what_one_step_computes() -> None:
    cache = CacheConfig(BLOCK, 12, tiers=TierConfig(num_offload_slots=12))
    s = Scheduler(SchedulerConfig(1000, 4, 2 * BLOCK), cache)
    s.add(request("a1", 7 * BLOCK, max_tokens=1))
    finish(s)
    s.add(request("b", 12 * BLOCK - 8, max_tokens=1))
    finish(s)
    s.add(request("a2", 11 * BLOCK, max_tokens=1))
    s.schedule(0.0)
    assert len(s.kv.table("a2")) == 7 + 2


def test_a_failed_load_is_computed_again() -> None:
    s, again = evicted()
    loading = s.schedule(0.0)
    compute(s, loading, [loading.block_copies.loads[2].block])
    retry = s.schedule(0.0)
    assert len(retry.block_copies.loads) == 2  # as far as it is whole
    compute(s, retry)
    running = s.schedule(0.0)
    assert running.num_computed_tokens.tolist() == [2 * BLOCK]
    assert again.num_cached_tokens == 2 * BLOCK
    compute(s, running)
    finish(s)


def test_a_failed_load_is_not_forgotten_while_another_is_read() -> None:
    """Once the last file is read, nobody would know that a block before it is wrong."""
    s, again = evicted()
    loading = s.schedule(0.0)
    assert loading.block_copies is not None
    failed, slow = (loading.block_copies.loads[i].block for i in (2, 3))
    columns = token_columns([])
    s.update(loading, ModelOutput(columns, failed_loads=[failed], pending_loads=[slow]), 0.0)
    s.check_integrity()
    assert again.status is RequestStatus.PREEMPTED
    finish(s)
    assert again.num_cached_tokens == 2 * BLOCK


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_abort_while_loading_frees_the_blocks(when: str) -> None:
    s, _ = evicted()
    loading = s.schedule(0.0)
    if when == "after":
        compute(s, loading)
    s.abort(["a2"])
    s.check_integrity()
    assert s.kv.pool.num_used == 0
    if when == "before":
        compute(s, loading)
    s.add(request("a3", 7 * BLOCK, max_tokens=2))  # nobody loads it any more, so it may
    finish(s)
    assert s.kv.tier.stats().loaded == (12 if when == "before" else 6)


def test_a_failed_step_relies_on_none_of_its_loads() -> None:
    s, _ = evicted()
    loading = s.schedule(0.0)
    s.fail(loading, "crash", 0.0)
    s.check_integrity()
    finish(s)


def preempted(mode: str, cost: StepCost | None = None) -> Scheduler:
    """Two requests that grow until one of them has to go."""
    s = make(5, TierConfig(num_swap_slots=8), mode=mode, cost=cost)
    for name in "ab":
        s.add(request(name, 2 * BLOCK - 4, max_tokens=20))
    while s.stats().num_preemptions == 0:
        compute(s, s.schedule(0.0))
    return s


@pytest.mark.parametrize("kind", ["swapped", "evicted"])
def test_a_step_that_fails_for_its_loads_is_not_made_again(kind: str) -> None:
    """Nothing else is in the step: if its loads were tried again, nobody would ever be served."""
    if kind == "swapped":
        s, name = preempted("swap"), "b"
        s.reset_prefix_cache()
        s.abort(["a"])
    else:
        s, name = evicted()[0], "a2"
    waiting = s.requests[name]
    step = s.schedule(0.0)
    assert step.empty
    assert step.block_copies.loads
    assert s.fail(step, "the copy failed", 0.0).outputs == []
    s.check_integrity()
    again = s.schedule(0.0)
    assert again.num_computed_tokens.tolist() == [0]
    assert again.num_scheduled_tokens.tolist() == [waiting.num_tokens]
    compute(s, again)
    finish(s)


def test_loads_of_a_step_that_was_not_begun_are_tried_again() -> None:
    s = make(12, TierConfig(num_offload_slots=12))
    s.add(request("a1", 7 * BLOCK, max_tokens=1))
    finish(s)
    s.add(request("b", 12 * BLOCK - 1, max_tokens=1))
    finish(s)
    s.add(request("c", BLOCK, max_tokens=9))
    first = s.schedule(0.0)
    s.add(request("a2", 7 * BLOCK, max_tokens=2))
    assert s.schedule(0.0).block_copies is not None
    s.fail(first, "the kernel crashed", 0.0)
    again = s.schedule(0.0)
    assert len(again.block_copies.loads) == 6
    compute(s, again)
    finish(s)


def test_who_is_loading_has_a_seat() -> None:
    cache = CacheConfig(BLOCK, 24, tiers=TierConfig(num_offload_slots=24))
    s = Scheduler(SchedulerConfig(1000, 2, 400, "priority"), cache)
    for name, length in (("a1", 7 * BLOCK), ("b", 24 * BLOCK - 1)):
        s.add(request(name, length, max_tokens=1))
        finish(s)
    s.add(request("low", 8, priority=5))
    compute(s, s.schedule(0.0))
    s.add(request("a2", 7 * BLOCK))
    assert s.schedule(0.0).block_copies is not None
    s.add(request("high", 8))
    assert s.schedule(0.0).request_ids == ["high"]
    assert s.requests["low"].num_preemptions == 1


@pytest.mark.parametrize(("block_seconds", "loads"), [(0.16, 6), (0.17, 0)])
def test_a_prefix_is_loaded_only_if_that_is_faster(block_seconds: float, loads: int) -> None:
    s, _ = evicted(Copying(block_seconds))
    step = s.schedule(0.0)
    assert len(step.block_copies.loads if step.block_copies else []) == loads
    assert step.empty == bool(loads)
    compute(s, step)
    finish(s)


def test_copies_that_turn_out_slow_are_made_no_more() -> None:
    s, _ = evicted(Copying(0.1))
    step = s.schedule(0.0)
    compute(s, step, copy_seconds=60.0)
    finish(s)
    s.add(request("b2", 7 * BLOCK + 8, max_tokens=1))
    finish(s)  # evicts a2
    s.add(request("a4", 7 * BLOCK, max_tokens=1))
    assert not s.schedule(0.0).empty


@pytest.mark.parametrize("seats", [1, 2, 3])
def test_who_loads_has_a_seat(seats: int) -> None:
    s = make(32, TierConfig(num_offload_slots=64), seats=seats)
    for name in "abc":
        s.add(request(name, 3 * BLOCK, max_tokens=1))
        finish(s)
    s.add(request("z", 31 * BLOCK, max_tokens=1))  # evicts them all
    finish(s)
    for name in ("a2", "b2", "c2", "d"):
        s.add(request(name, 3 * BLOCK, max_tokens=1))
    first = s.schedule(0.0)
    assert len(s.kv.tables) == seats
    assert len(first.block_copies.loads) == 2 * seats
    assert first.empty
    compute(s, first)
    finish(s)


def test_who_is_ready_waits_while_no_budget_is_left() -> None:
    s = make(32, TierConfig(num_offload_slots=64))
    for name in "ab":
        s.add(request(name, 3 * BLOCK, max_tokens=1))
        finish(s)
    s.add(request("z", 31 * BLOCK, max_tokens=1))  # evicts them
    finish(s)
    for name in ("a2", "b2"):
        s.add(request(name, 3 * BLOCK, max_tokens=1))
    compute(s, s.schedule(0.0))
    assert s._loading.run(0, 0) == []
    [first] = s._loading.run(BLOCK, BLOCK)
    assert (first.request.request_id, first.scheduled) == ("a2", BLOCK)
    assert len(s._loading) == 1


@pytest.mark.parametrize(("budget", "loaded"), [(128, 8), (129, 16)])
def test_a_prefix_is_loaded_while_any_of_the_budget_is_left(budget: int, loaded: int) -> None:
    cache = CacheConfig(BLOCK, 32, tiers=TierConfig(num_offload_slots=64))
    s = Scheduler(SchedulerConfig(1000, 4, budget), cache)
    for name in "ab":
        s.add(request(name, 9 * BLOCK, max_tokens=1))
        finish(s)
    s.add(request("z", 31 * BLOCK, max_tokens=1))  # evicts them
    finish(s)
    for name in ("a2", "b2"):
        s.add(request(name, 9 * BLOCK, max_tokens=1))
    step = s.schedule(0.0)
    assert len(step.block_copies.loads) == loaded
    compute(s, step)
    finish(s)


@pytest.mark.parametrize("cached", [0, 4])
def test_what_a_load_is_predicted_from(monkeypatch: pytest.MonkeyPatch, cached: int) -> None:
    asked = []

    def load_pays(_: TierCost, *args: int, with_state: bool) -> bool:
        assert not with_state
        asked.append(args)
        return False

    monkeypatch.setattr(TierCost, "load_pays", load_pays)
    s, _ = evicted(Copying(0.0), blocks=8 - cached)
    asked.clear()
    monkeypatch.setattr(HostTier, "in_memory", lambda *_: False)
    s.schedule(0.0)
    left = (6 - cached) * BLOCK
    assert asked == [(6 * BLOCK, left, left, left)]


def test_who_loaded_in_a_later_step_runs_first_if_it_has_priority() -> None:
    kv = Mock()
    kv.admit_stored.return_value = [1], []
    kv.enter.return_value = 1
    loading = Loading(kv, 200, ImageChunks(200))
    for step, (name, priority) in enumerate({"low": 2, "high": 1}.items()):
        asked = request(name, 2 * BLOCK)
        asked.order = (priority, step)
        loading.begin(step, asked, Stored([1], BLOCK))
        assert loading.end(step, []) == []
    assert [admitted.request.request_id for admitted in loading.run(200, 200)] == ["high", "low"]


def test_who_is_ready_inside_an_image_waits_for_budget_and_room() -> None:
    """What sees each other may exceed a budget, but there has to be one, and room in the step."""
    kv = Mock()
    kv.admit_stored.return_value = [1, 2], []
    loading = Loading(kv, 200, ImageChunks(200))
    span = ImageSpan(8, 16, b"", None, (1, 1), b"", (8, 24))
    for place, (name, length) in enumerate({"a": BLOCK + 4, "b": 2 * BLOCK}.items()):
        asked = request(name, length)
        asked.inputs = RequestInputs(images=(span,) if name == "b" else ())
        asked.order = (0, place)
        loading.begin(1, asked, Stored([1], BLOCK))
    assert loading.end(1, []) == []
    assert [admitted.scheduled for admitted in loading.run(6, 11)] == [4]
    assert loading.run(0, 200) == loading.run(1, 7) == []
    assert [admitted.scheduled for admitted in loading.run(1, 8)] == [24 - BLOCK]


def test_reads_and_copies_correct_the_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a step without copies: files are read in the background."""
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(TierCost, "observe", lambda _, *given: seen.append(given))
    monkeypatch.setattr(TierCost, "observe_reads", lambda _, *given: seen.append(given))
    s, _ = evicted(Copying(0.1))
    seen.clear()
    loading = s.schedule(0.0)
    compute(s, loading, copy_seconds=2.0)
    assert seen == [(loading.block_copies, 2.0), (0.0, 0.0)]
    running = s.schedule(0.0)
    s.update(running, sampled(s, running, 5, reads=(3.0, 0.5)), 0.0)
    assert seen[2:] == [(3.0, 0.5)]
