"""Blocks that arrive while later steps compute: from files, or from another engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.core.batch import AT_PEER, SchedulerOutput
from quire.core.config import CacheConfig, SchedulerConfig, TierConfig
from quire.core.images import ImageSpan
from quire.core.options import RequestInputs
from quire.core.request import RequestStatus
from quire.kv.lower_tiers import PromisedBlocks
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import BLOCK, request, sampled

LENGTH = 3 * BLOCK + 4


def make(names: str = "a", num_blocks: int = 32, seats: int = 4) -> Scheduler:
    """A scheduler to which another engine has promised the prompts' three blocks."""
    promised = PromisedBlocks()
    limits = SchedulerConfig(1000, seats, 64)
    s = Scheduler(
        limits,
        CacheConfig(BLOCK, num_blocks, tiers=TierConfig(num_offload_slots=1)),
        lower=[promised],
    )
    for name in names:
        asked = request(name, LENGTH, max_tokens=2)
        promised.promise(s.kv.hasher.extend(asked))
        s.add(asked)
    return s


def land(
    s: Scheduler,
    step: SchedulerOutput,
    pending: Sequence[int] = (),
    failed: Sequence[int] = (),
) -> None:
    result = sampled(s, step, 5, pending_loads=[*pending], failed_loads=[*failed])
    s.update(step, result, 0.0)
    s.check_integrity()


def loads(step: SchedulerOutput) -> list[int]:
    """The blocks into which a step begins to load."""
    assert all(load.slot == AT_PEER for load in step.block_copies.loads)
    return [load.block for load in step.block_copies.loads]


def cancelled(step: SchedulerOutput) -> list[int]:
    return step.block_copies.cancelled if step.block_copies else []


def test_a_request_runs_once_its_last_block_has_come() -> None:
    s = make()
    begun = s.schedule(0.0)
    first, *others = loads(begun)
    land(s, begun, pending=others)
    for left in (others, others[1:]):
        step = s.schedule(0.0)
        assert step.empty
        assert s.requests["a"].status is RequestStatus.LOADING
        land(s, step, pending=left)
    assert s.stats().num_waiting == 1
    land(s, s.schedule(0.0))
    step = s.schedule(0.0)
    assert step.num_computed_tokens.tolist() == [3 * BLOCK]
    assert step.num_scheduled_tokens.tolist() == [4]
    assert first in s.kv.table("a")


def test_others_run_while_blocks_are_on_their_way() -> None:
    s = make()
    begun = s.schedule(0.0)
    blocks = loads(begun)
    land(s, begun, pending=blocks)
    s.add(request("b", 4, max_tokens=1))
    step = s.schedule(0.0)
    assert step.request_ids == ["b"]
    land(s, step, pending=blocks)
    assert s.stats().num_waiting == 1


@pytest.mark.parametrize("when", ["with the first", "later"])
def test_a_failed_block_is_not_forgotten_while_others_are_on_their_way(when: str) -> None:
    """Once they had come, nobody would know that a block before them is wrong."""
    s = make()
    step = s.schedule(0.0)
    _, failed, slow = loads(step)
    if when == "later":
        land(s, step, pending=[failed, slow])
        step = s.schedule(0.0)
    land(s, step, pending=[slow], failed=[failed])
    assert s.requests["a"].status is RequestStatus.PREEMPTED
    assert s.kv.pool.num_used == 0
    again = s.schedule(0.0)
    assert cancelled(again) == [slow]
    assert len(loads(again)) == 1  # the failed one is not asked for again
    land(s, again)
    assert s.schedule(0.0).num_computed_tokens.tolist() == [BLOCK]


@pytest.mark.parametrize("when", ["begun", "pending", "ready"])
def test_blocks_of_an_aborted_request_are_written_no_more(when: str) -> None:
    s = make()
    step = s.schedule(0.0)
    blocks = loads(step)
    if when != "begun":
        land(s, step, pending=blocks if when == "pending" else [])
    s.abort(["a"])
    s.check_integrity()
    assert s.kv.pool.num_used == 0
    if when == "begun":
        land(s, step, pending=blocks)
    s.add(request("b", 4))
    assert cancelled(s.schedule(0.0)) == ([] if when == "ready" else blocks)


def test_one_of_two_aborted_requests_is_the_right_one() -> None:
    s = make("ab")
    step = s.schedule(0.0)
    blocks = loads(step)
    land(s, step, pending=blocks)
    s.abort(["b"])
    s.check_integrity()
    step = s.schedule(0.0)
    assert cancelled(step) == blocks[3:]
    land(s, step)
    assert s.schedule(0.0).request_ids == ["a"]


def test_a_failed_step_leaves_no_block_to_be_written() -> None:
    """Nobody knows which of the pending loads have ended in it."""
    s = make("ab", seats=2)
    step = s.schedule(0.0)
    blocks = loads(step)
    land(s, step, pending=blocks)
    failing = s.schedule(0.0)
    s.fail(failing, "the copy failed", 0.0)
    s.check_integrity()
    assert s.kv.pool.num_used == 0
    step = s.schedule(0.0)
    assert cancelled(step) == blocks
    assert step.num_scheduled_tokens.tolist() == [LENGTH, 64 - LENGTH]


def test_a_step_that_never_began_asks_again() -> None:
    s = make("")
    s.add(request("c", BLOCK, max_tokens=9))
    first = s.schedule(0.0)
    asked = request("a", LENGTH, max_tokens=2)
    for tier in s.kv.tiers:
        tier.promise(s.kv.hasher.extend(asked))
    s.add(asked)
    blocks = loads(s.schedule(0.0))
    s.fail(first, "the kernel crashed", 0.0)
    s.check_integrity()
    step = s.schedule(0.0)
    assert cancelled(step) == blocks
    assert len(loads(step)) == 3


def test_who_is_ready_runs_in_the_order_of_arrival() -> None:
    s = make("ab")
    step = s.schedule(0.0)
    blocks = loads(step)
    land(s, step, pending=blocks)
    step = s.schedule(0.0)
    land(s, step, pending=blocks[:3])  # b is ready
    step = s.schedule(0.0)
    assert step.request_ids == ["b"]
    land(s, step)
    assert s.schedule(0.0).request_ids == ["a", "b"]


def test_who_loads_keeps_the_blocks_for_the_rest_of_its_prompt() -> None:
    """Of 10 blocks, a loads 3. Its first chunk needs 4 more, and the rest of its prompt 1."""
    promised = PromisedBlocks()
    cache = CacheConfig(BLOCK, 10, tiers=TierConfig(num_offload_slots=1))
    s = Scheduler(SchedulerConfig(1000, 4, 64), cache, lower=[promised])
    asked = request("a", 7 * BLOCK + 4, max_tokens=1)
    promised.promise(s.kv.hasher.extend(asked)[:3])
    s.add(asked)
    step = s.schedule(0.0)
    blocks = loads(step)
    land(s, step, pending=blocks)
    s.add(request("b", 3 * BLOCK, max_tokens=1))
    assert s.schedule(0.0).empty
    assert s.kv.pool.num_free == 3


def test_an_image_has_no_room_beside_who_is_ready() -> None:
    """Of 64 tokens, a takes 4, and b's image would need 61."""
    s = make()
    step = s.schedule(0.0)
    blocks = loads(step)
    land(s, step, pending=blocks)
    asked = request("b", 64)
    asked.inputs = RequestInputs(images=(ImageSpan(0, 61, b"", None, (1, 1), b"", (0, 61)),))
    land(s, s.schedule(0.0))
    s.add(asked)
    assert s.schedule(0.0).request_ids == ["a"]


def test_who_needs_the_same_blocks_waits_for_them() -> None:
    s = make()
    s.add(request("a2", LENGTH))
    assert len(loads(s.schedule(0.0))) == 3
    assert s.kv.tables.keys() == {"a"}
