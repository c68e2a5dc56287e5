"""Requests whose blocks come back from the host tier: admitted in one step, running in the next."""

from __future__ import annotations

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.config import CacheConfig, SchedulerConfig, TierConfig
from quire.core.request import Request
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.test_scheduler import request

BLOCK = 16


def make(num_blocks: int, tiers: TierConfig, *, seats: int = 4, mode: str = "swap") -> Scheduler:
    cache = CacheConfig(BLOCK, num_blocks, tiers=tiers)
    return Scheduler(SchedulerConfig(1000, seats, 200, preemption_mode=mode), cache)  # type: ignore[arg-type]


def compute(s: Scheduler, step: SchedulerOutput, failed: list[int] | None = None) -> None:
    """Take in a step whose model always says 9."""
    ends = step.num_computed_tokens + step.num_scheduled_tokens
    rows = [
        [9] if end >= s.requests[name].num_tokens else []
        for name, end in zip(step.request_ids, ends.tolist(), strict=True)
    ]
    s.update(step, ModelOutput(token_columns(rows), failed_loads=failed or []), 0.0)
    s.check_integrity()


def finish(s: Scheduler) -> None:
    for _ in range(200):
        if not s.has_unfinished():
            return
        compute(s, s.schedule(0.0))
    raise AssertionError("somebody starves")


def evicted() -> tuple[Scheduler, Request]:
    """A scheduler that has served a prompt and evicted it, and the same prompt again."""
    s = make(8, TierConfig(num_offload_slots=8))
    s.add(request("a1", 7 * BLOCK, max_tokens=1))
    finish(s)
    s.add(request("b", 7 * BLOCK + 8, max_tokens=1))
    finish(s)
    again = request("a2", 7 * BLOCK, max_tokens=2)
    s.add(again)
    return s, again


def test_a_request_runs_in_the_step_after_its_loads() -> None:
    s, again = evicted()
    loading = s.schedule(0.0)
    assert loading.empty
    assert loading.block_copies is not None
    assert len(loading.block_copies.loads) == 6
    assert again.num_cached_tokens == 6 * BLOCK
    compute(s, loading)
    running = s.schedule(0.0)
    assert running.request_ids == ["a2"]
    assert running.num_computed_tokens.tolist() == [6 * BLOCK]
    assert running.num_scheduled_tokens.tolist() == [BLOCK]
    compute(s, running)
    finish(s)
    assert s.stats().host_tier is not None


def test_who_needs_what_is_being_loaded_waits_for_it() -> None:
    s, _ = evicted()
    s.add(request("a3", 7 * BLOCK, max_tokens=2))
    loading = s.schedule(0.0)
    assert loading.block_copies is not None
    assert len(loading.block_copies.loads) == 6
    compute(s, loading)
    finish(s)
    assert s.kv.tier is not None
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
    assert first.block_copies is not None
    assert len(first.block_copies.loads) == 16  # two of them: the budget is 200 tokens
    compute(s, first)
    finish(s)
    assert s.kv.tier is not None
    assert s.kv.tier.stats().loaded == 24


def test_a_failed_load_is_computed_again() -> None:
    s, again = evicted()
    loading = s.schedule(0.0)
    assert loading.block_copies is not None
    compute(s, loading, [loading.block_copies.loads[2].block])
    retry = s.schedule(0.0)
    assert retry.block_copies is not None
    assert len(retry.block_copies.loads) == 2  # as far as it is whole
    compute(s, retry)
    running = s.schedule(0.0)
    assert running.num_computed_tokens.tolist() == [2 * BLOCK]
    assert again.num_cached_tokens == 2 * BLOCK
    compute(s, running)
    finish(s)


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
    s.add(request("c", 7 * BLOCK, max_tokens=2))
    finish(s)


def test_a_failed_step_relies_on_none_of_its_loads() -> None:
    s, _ = evicted()
    loading = s.schedule(0.0)
    s.fail(loading, "crash", 0.0)
    s.check_integrity()
    finish(s)


def preempted(mode: str) -> Scheduler:
    """Two requests that grow until one of them has to go."""
    s = make(5, TierConfig(num_swap_slots=8), mode=mode)
    for name in "ab":
        s.add(request(name, 2 * BLOCK - 4, max_tokens=20))
    while s.stats().num_preemptions == 0:
        compute(s, s.schedule(0.0))
    return s


def test_a_swapped_request_goes_on_where_it_was() -> None:
    s = preempted("swap")
    assert s.kv.tier is not None
    tier = s.kv.tier.stats()
    assert (tier.swap_preemptions, tier.swapped_out, tier.num_requests_swapped) == (1, 2, 1)
    behind = s.requests["b"]
    finish(s)
    assert behind.num_output_tokens == 20
    tier = s.kv.tier.stats()
    assert (tier.slots_used, tier.num_requests_swapped, tier.failed) == (0, 0, 0)


def test_what_was_swapped_out_before_a_reset_is_not_found_after_it() -> None:
    s = preempted("swap")
    s.reset_prefix_cache()
    finish(s)
    s.add(request("b2", 2 * BLOCK + 4, max_tokens=1))
    assert s.kv.find_prefix(s.requests["b2"]) == []
    finish(s)


def test_recompute_keeps_nothing() -> None:
    s = preempted("recompute")
    assert s.kv.tier is not None
    assert s.kv.tier.stats().swapped_out == 0
    finish(s)


def test_an_abort_gives_swap_slots_back() -> None:
    s = preempted("swap")
    s.abort(["b"])
    assert s.kv.tier is not None
    assert s.kv.tier.stats().slots_used == 0
    s.check_integrity()
