"""Blocks behind the window of every layer are given back while a request runs."""

from __future__ import annotations

from random import Random

import pytest

from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.errors import InvalidRequestError
from quire.kv.manager import KVCacheManager
from quire.kv.prefix import NO_BLOCK, Entered
from quire.scheduler.scheduler import Scheduler
from tests.unit.kv.test_manager import admit
from tests.unit.kv.test_manager import request as prompt
from tests.unit.scheduler.steps import request, sampled, step

BLOCK, WINDOW, BUDGET = 16, 40, 32
MOST = (WINDOW + BUDGET - 2) // BLOCK + 2


def make(num_blocks: int) -> Scheduler:
    cache = CacheConfig(BLOCK, num_blocks, sliding_window=WINDOW)
    return Scheduler(SchedulerConfig(1000, 2, BUDGET), cache)


def test_a_long_request_runs_in_few_blocks() -> None:
    s = make(num_blocks=MOST)
    s.add(request("a", 600, max_tokens=100))
    peak = 0
    while s.has_unfinished():
        step(s)
        peak = max(peak, s.kv.pool.num_used)
    assert s.stats().num_preemptions == 0
    assert peak <= MOST
    small = make(num_blocks=MOST - 1)
    with pytest.raises(InvalidRequestError, match="whole KV cache"):
        small.add(request("a", 600))


def test_admission_counts_what_a_request_will_hold() -> None:
    s = make(num_blocks=2 * MOST)
    for name in "ab":
        s.add(request(name, 300, max_tokens=20))
    most = 0
    while s.has_unfinished():
        most = max(most, len(step(s)[0]))
    assert most == 2
    assert s.stats().num_preemptions == 0


def test_a_decoding_request_holds_its_window_only() -> None:
    s = make(num_blocks=20)
    s.add(request("a", 200, max_tokens=50))
    for _ in range(20):
        step(s)
    table = s.kv.table("a")
    computed = int(s.running.num_computed[0])
    assert all(b == NO_BLOCK for b in table[: (computed - 1 - WINDOW + 1) // BLOCK])
    assert s.kv.pool.num_used <= (WINDOW - 2) // BLOCK + 2


def test_what_is_reserved_for_a_prompt_is_what_its_window_may_hold_yet() -> None:
    s = make(num_blocks=20)
    s.add(request("b", 1, max_tokens=200))
    step(s)
    s.add(request("a", 600))
    seen = set()
    for _ in range(600 // BUDGET):
        batch = s.schedule(0.0)
        table = s.kv.table("a")
        held = len(table) - table.count(NO_BLOCK)
        reserved = min(-(-600 // BLOCK) - len(table), MOST - held)
        assert int(s._admission.reserved()[1]) == reserved
        seen.add(reserved)
        s.update(batch, sampled(s, batch, 5), 0.0)
    assert {0, 1} < seen


def manager() -> KVCacheManager:
    return KVCacheManager(CacheConfig(BLOCK, 64, sliding_window=WINDOW), BUDGET)


def test_a_hit_needs_the_last_window_only() -> None:
    kv = manager()
    first = prompt("first", list(range(160)))
    admit(kv, first)
    again = prompt("again", list(range(170)))
    # The token at 160 attends to 121 and on: blocks 7, 8 and 9.
    assert kv.find_prefix(again) == [NO_BLOCK] * 7 + kv.table("first")[7:10]
    kv.forget(Entered(kv.table("first")[:7], []))
    assert kv.find_prefix(again)[7:] == kv.table("first")[7:10]
    kv.forget(Entered([kv.table("first")[8]], []))
    assert kv.find_prefix(again) == []


def test_a_shorter_prefix_is_found_where_the_end_is_gone() -> None:
    kv = manager()
    first = prompt("first", list(range(160)))
    admit(kv, first)
    kv.forget(Entered([kv.table("first")[5]], []))
    # Up to block 5, which is gone: its first token attends to 41 and on.
    kv.forget(Entered([kv.table("first")[8]], []))
    assert kv.find_prefix(prompt("again", list(range(170)))) == (
        [NO_BLOCK] * 2 + kv.table("first")[2:5]
    )


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 18, 33, 40, 1000])
def test_the_longest_prefix_whose_window_is_known(window: int) -> None:
    rng = Random(window)
    tokens = list(range(10 * BLOCK))
    for _ in range(20):
        kv = KVCacheManager(CacheConfig(BLOCK, 64, sliding_window=window), BUDGET)
        admit(kv, prompt("first", tokens))
        table = kv.table("first")
        gone = {block for block in table if rng.random() < rng.choice([0.1, 0.4])}
        kv.forget(Entered(list(gone), []))
        for end in reversed(range(len(table) + 1)):
            # The blocks that the token behind the prefix attends to.
            seen = {p // BLOCK for p in range(max(0, end * BLOCK - window + 1), end * BLOCK)}
            if gone.isdisjoint(table[i] for i in seen):
                break
        first = min(seen, default=end)
        assert kv.find_prefix(prompt("again", [*tokens, 7])) == (
            [NO_BLOCK] * first + table[first:end]
        )


def test_shared_prefixes_without_their_beginning() -> None:
    kv = manager()
    admit(kv, prompt("first", list(range(160))))
    second = prompt("second", list(range(170)))
    admit(kv, second)
    kv.check_integrity()
    assert kv.table("second")[:7] == [NO_BLOCK] * 7
    kv.free(second)
    kv.check_integrity()


@pytest.mark.parametrize("budget", range(25, 42))
def test_the_fewest_blocks_in_which_a_long_request_runs(budget: int) -> None:
    """Its window, and a step's tokens: begun and ended within a block."""
    fewest = (WINDOW + budget - 2) // BLOCK + 2
    cache = CacheConfig(BLOCK, fewest, sliding_window=WINDOW)
    s = Scheduler(SchedulerConfig(1000, 2, budget), cache)
    s.add(request("a", 300, max_tokens=3))
    while s.has_unfinished():
        step(s)
    assert s.stats().num_preemptions == 0
