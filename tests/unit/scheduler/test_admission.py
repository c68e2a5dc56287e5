"""Who is admitted beside requests whose blocks are being loaded, and at the limits of a step."""

from __future__ import annotations

from typing import Any

from quire.core.config import CacheConfig, SchedulerConfig, TierConfig
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import request, step
from tests.unit.scheduler.test_adapters import adapted
from tests.unit.scheduler.test_loading import BLOCK, compute, evicted, finish


def stored(num_blocks: int = 16, seats: int = 4, adapter: int = 0, **limits: Any) -> Scheduler:
    """A scheduler whose host tier has 7 blocks of "a", and whose KV cache has none."""
    cache = CacheConfig(BLOCK, num_blocks, tiers=TierConfig(num_offload_slots=num_blocks))
    s = Scheduler(SchedulerConfig(1000, seats, 64, **limits), cache)
    first = request("a1", 7 * BLOCK, max_tokens=1)
    if adapter:
        first.inputs = adapted("a", adapter).inputs
    s.add(first)
    finish(s)
    s.add(request("z", num_blocks * BLOCK - 1, max_tokens=1))  # evicts it
    finish(s)
    return s


def test_blocks_that_another_request_uses_are_not_charged() -> None:
    """Of 8 blocks a3 holds 5, among them the 4 that a2 shares. It needs the other 3."""
    s, _ = evicted(blocks=4)
    s.abort(["a2"])
    s.add(request("a3", 4 * BLOCK + 1))
    compute(s, s.schedule(0.0))
    assert s.kv.pool.num_free == 3
    s.add(request("a2", 7 * BLOCK))
    copies = s.schedule(0.0).block_copies
    assert len(copies.loads) == 2


def test_a_block_is_loaded_by_one_request_at_a_time() -> None:
    s = stored()
    for name in ("a2", "a3"):
        s.add(request(name, 7 * BLOCK, max_tokens=2))
    loading = s.schedule(0.0)
    assert (s.stats().num_waiting, s.stats().num_loading) == (2, 1)
    assert len(loading.block_copies.loads) == 6
    assert s.kv.tables.keys() == {"a2"}
    compute(s, loading)
    compute(s, s.schedule(0.0))
    assert s.kv.tables.keys() == {"a2", "a3"}


def test_a_loading_request_has_its_adapter_in_the_step() -> None:
    s = stored(adapter=1, max_loras=1)
    again = request("a2", 7 * BLOCK)
    again.inputs = adapted("a", 1).inputs
    s.add(again)
    s.add(adapted("b", 2))
    assert s.schedule(0.0).block_copies is not None
    assert s.kv.tables.keys() == {"a2"}


def test_nobody_leaves_for_a_seat_that_only_a_load_holds() -> None:
    s = stored(seats=1, policy="priority")
    s.add(request("a2", 7 * BLOCK, priority=1))
    loading = s.schedule(0.0)
    assert loading.block_copies is not None
    s.add(request("b", 4))
    assert s.schedule(0.0).empty
    compute(s, loading)


def test_blocks_promised_to_a_load_count_when_others_have_to_leave() -> None:
    """Of 16 blocks, a2 holds 11 of its 14 while it loads, and low holds 2. High needs 3."""
    s = stored(policy="priority")
    s.add(request("low", 2 * BLOCK - 8, priority=2))
    compute(s, s.schedule(0.0))
    s.add(request("a2", 14 * BLOCK, priority=1))
    assert s.schedule(0.0).block_copies is not None
    assert len(s.kv.table("a2")) == 7 + 4
    assert s.kv.blocks_missing(s.requests["a2"]) == 3
    s.add(request("high", 2 * BLOCK))
    assert "high" in s.schedule(0.0).request_ids
    assert s.requests["low"].num_preemptions == 1


def test_a_whole_prompt_that_just_fits_is_computed() -> None:
    cache = CacheConfig(BLOCK, 16)
    s = Scheduler(SchedulerConfig(1000, 4, 40, whole_prompts=True), cache)
    for name, length in (("a", 30), ("b", 10), ("c", 1)):
        s.add(request(name, length))
    assert step(s)[0] == {"a": 30, "b": 10}
    for name, length in (("d", 38), ("e", 1)):
        s.add(request(name, length))
    assert step(s)[0] == {"a": 1, "b": 1, "c": 1}  # d waits for the whole of its prompt
