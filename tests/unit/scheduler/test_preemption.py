"""Preempted requests: swapped out or computed again, they go on where they were."""

from __future__ import annotations

import pytest

from quire.core.batch import ModelOutput, token_columns
from quire.core.config import CacheConfig, SchedulerConfig, TierConfig
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.tier_cost import TierCost
from tests.unit.scheduler.steps import request, sampled
from tests.unit.scheduler.test_loading import BLOCK, Copying, compute, finish, make, preempted


def test_a_swapped_request_goes_on_where_it_was() -> None:
    s = preempted("swap")
    tier = s.kv.tier.stats()
    assert (tier.swap_preemptions, tier.swapped_out, tier.num_requests_swapped) == (1, 2, 1)
    behind = s.requests["b"]
    finish(s)
    assert behind.num_output_tokens == 20
    tier = s.kv.tier.stats()
    assert (tier.slots_used, tier.num_requests_swapped, tier.failed) == (0, 0, 0)


def test_a_request_without_computed_tokens_has_nothing_to_swap() -> None:
    limits = SchedulerConfig(1000, 4, 64, preemption_mode="swap")
    s = Scheduler(limits, CacheConfig(BLOCK, 16, tiers=TierConfig(num_swap_slots=4)))
    s.add(request("a", 1))
    s.schedule(0.0)
    s._preemption.preempt_last()
    assert s.kv.tier.stats().num_requests_swapped == 0


def test_what_was_swapped_out_before_a_reset_is_not_found_after_it() -> None:
    s = preempted("swap")
    s.reset_prefix_cache()
    finish(s)
    s.add(request("b2", 2 * BLOCK + 4, max_tokens=1))
    assert s.kv.find_prefix(s.requests["b2"]) == []
    finish(s)


def test_swapped_blocks_that_cannot_be_loaded_are_computed_again() -> None:
    s = preempted("swap")
    s.reset_prefix_cache()  # else they would still be there
    behind = s.requests["b"]
    for _ in range(40):
        if not s.has_unfinished():
            break
        step = s.schedule(0.0)
        copies = step.block_copies
        compute(s, step, [load.block for load in copies.loads] if copies else [])
    assert behind.num_output_tokens == 20
    tier = s.kv.tier.stats()
    assert (tier.swapped_in, tier.failed) == (2, 2)  # tried once
    assert (tier.slots_used, tier.num_requests_swapped) == (0, 0)


def test_blocks_are_swapped_out_where_no_cost_is_known() -> None:
    s = preempted("auto")
    assert s.kv.tier.stats().swapped_out == 2
    finish(s)


def test_recompute_keeps_nothing() -> None:
    s = preempted("recompute")
    assert s.kv.tier.stats().swapped_out == 0
    finish(s)


def test_an_abort_gives_swap_slots_back() -> None:
    s = preempted("swap")
    s.abort(["b"])
    assert s.kv.tier.stats().slots_used == 0
    s.check_integrity()


@pytest.mark.parametrize(
    ("mode", "seconds", "swapped"), [("auto", 1e3, 0), ("auto", 0.0, 2), ("swap", 1e3, 2)]
)
def test_slow_copies_are_made_only_if_they_are_asked_for(
    mode: str, seconds: float, swapped: int
) -> None:
    s = preempted(mode, Copying(seconds))
    s.reset_prefix_cache()
    finish(s)
    tier = s.kv.tier.stats()
    assert (tier.swapped_out, tier.swapped_in) == (swapped, swapped)


def test_a_prompt_that_is_swapped_out_between_chunks_goes_on_there() -> None:
    cache = CacheConfig(BLOCK, 8, tiers=TierConfig(num_swap_slots=8))
    s = Scheduler(SchedulerConfig(1000, 2, 2 * BLOCK, preemption_mode="swap"), cache)
    s.add(request("a", 6 * BLOCK, max_tokens=1))
    compute(s, s.schedule(0.0))
    s._preemption.preempt_last()
    s.kv.pool.forget_all()
    loading = s.schedule(0.0)
    assert len(loading.block_copies.loads) == 2
    compute(s, loading)
    assert s.schedule(0.0).num_computed_tokens.tolist() == [2 * BLOCK]


def test_a_swapped_block_that_is_not_full_is_not_shared() -> None:
    """Its last token is known, but not computed."""
    s = make(8, TierConfig(num_swap_slots=8))
    s.add(request("a", 2 * BLOCK - 1, max_tokens=9))
    compute(s, s.schedule(0.0))
    assert s.requests["a"].num_tokens == 2 * BLOCK
    s._preemption.preempt_last()
    loading = s.schedule(0.0)
    assert len(loading.block_copies.loads) == 1
    compute(s, loading)
    longer = request("a2", 3 * BLOCK)
    longer.token_ids[: 2 * BLOCK] = s.requests["a"].token_ids
    assert len(s.kv.find_prefix(longer)) == 1
    finish(s)


def test_swapped_blocks_outlive_the_failure_of_somebody_else() -> None:
    s = make(9, TierConfig(num_swap_slots=8))
    for name in "ab":
        s.add(request(name, 4 * BLOCK - 4, max_tokens=20))
    while s.stats().num_preemptions == 0:
        compute(s, s.schedule(0.0))
    s.reset_prefix_cache()
    s.abort(["a"])
    s.add(request("c", 4, max_tokens=2))
    step = s.schedule(0.0)
    assert step.request_ids == ["c"]
    result = ModelOutput(token_columns([[]]), errors={"c": "NaN"})
    s.repair(step, result, set(), 0.0)
    s.check_integrity()
    again = s.schedule(0.0)
    assert again.block_copies.loads
    compute(s, again)
    finish(s)


def test_the_host_tier_needs_room_only_for_what_is_computed() -> None:
    s = make(8, TierConfig(num_swap_slots=2))
    s.add(request("a", 2 * BLOCK, max_tokens=9))
    compute(s, s.schedule(0.0))
    s.schedule(0.0)  # the next token has a block, too
    s._preemption.preempt_last()
    assert s.kv.tier.stats().swapped_out == 2


def test_others_find_what_a_preempted_request_has_completed() -> None:
    """Its first block was full when its tokens were not yet known, and it leaves before the next
    step could enter the block."""
    s = Scheduler(SchedulerConfig(1000, 2, 64), CacheConfig(BLOCK, 3))
    for name in "ab":
        s.add(request(name, BLOCK - 1))
    first, _ = s.schedule(0.0), s.schedule(0.0)
    s.update(first, sampled(s, first, 5), 0.0)
    s.schedule(0.0)
    assert s.requests["b"].num_preemptions == 1
    tokens = [*s.requests["b"].token_ids, 7, 7]
    again = Request("c", tokens, SamplingParams(), arrival_time=0.0, max_model_len=99)
    assert len(s.kv.find_prefix(again)) == 1


def test_a_swap_is_predicted_from_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def swap_pays(_: TierCost, num_tokens: int) -> bool:
        asked.append(num_tokens)
        return True

    monkeypatch.setattr(TierCost, "swap_pays", swap_pays)
    preempted("auto", Copying(0.0))
    assert asked == [2 * BLOCK]


def test_what_a_lost_request_was_to_compute_is_kept_nowhere() -> None:
    cache = CacheConfig(BLOCK, 16, tiers=TierConfig(num_swap_slots=8))
    s = Scheduler(SchedulerConfig(1000, 2, 200, preemption_mode="swap"), cache)
    for name in "ab":
        s.add(request(name, 2 * BLOCK))
    batch = s.schedule(0.0)
    s.repair(batch, ModelOutput(token_columns([[5], []])), {"b"}, 0.0)
    s.check_integrity()
    assert s.requests["b"].num_preemptions == 1
    assert s.kv.find_prefix(request("b2", 3 * BLOCK)) == []
    assert s.kv.tier.stats().swapped_out == 0


def test_a_request_began_when_it_was_first_scheduled() -> None:
    s = Scheduler(SchedulerConfig(1000, 2, 64), CacheConfig(BLOCK, 16))
    s.add(request("a", 4))
    for now in (3.0, 5.0):
        batch = s.schedule(now)
        s._preemption.preempt_last()
        s.update(batch, ModelOutput(token_columns([[]])), now)
    assert s.requests["a"].first_scheduled_time == 3.0


def test_a_step_behind_a_repaired_one_never_happened() -> None:
    s = Scheduler(SchedulerConfig(1000, 2, 64), CacheConfig(BLOCK, 16))
    for name in "ab":
        s.add(request(name, 4))
    batch, _ = s.schedule(0.0), s.schedule(0.0)
    outputs = s.repair(batch, ModelOutput(token_columns([[5], [5]])), set(), 0.0)
    s.check_integrity()
    assert [output.new_token_ids for output in outputs.each()] == [[5], [5]]
    left = [event.request_id for event in outputs.events if event.kind == "preempted"]
    assert left == ["b", "a"]
    again = s.schedule(0.0)
    assert again.request_ids == ["a", "b"]
    assert again.num_scheduled_tokens.tolist() == [5, 5]
    compute(s, again)
