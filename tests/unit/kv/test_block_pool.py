"""The block pool against a model of it: plain lists and dictionaries."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.kv.block_pool import BlockPool
from tests.examples import examples

NUM_BLOCKS = 7


class PoolMachine(RuleBasedStateMachine):
    """Random calls; the model keeps users by block, and the free list as a Python list."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, report_changes=True)
        self.reported: set[bytes] = set()
        self.free = list(range(NUM_BLOCKS))
        self.users = [0] * NUM_BLOCKS
        self.cached: dict[bytes, int] = {}

    def is_cached(self, block: int) -> bool:
        return block in self.cached.values()

    def drop(self, block: int) -> None:
        self.cached = {h: b for h, b in self.cached.items() if b != block}

    @rule(count=st.integers(0, NUM_BLOCKS))
    def allocate(self, count: int) -> None:
        if count > len(self.free):
            with pytest.raises(AssertionError):
                self.pool.allocate(count)
            return
        expected, self.free = self.free[:count], self.free[count:]
        assert self.pool.allocate(count) == expected
        for block in expected:
            self.users[block] = 1
            self.drop(block)

    @precondition(lambda self: any(self.users))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        used = [b for b in range(NUM_BLOCKS) if self.users[b]]
        block = data.draw(st.sampled_from(used))
        self.pool.release([block])
        self.users[block] -= 1
        if not self.users[block]:
            self.free.insert(len(self.free) if self.is_cached(block) else 0, block)

    @precondition(lambda self: any(self.users))
    @rule(data=st.data(), name=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def remember(self, data: st.DataObject, name: bytes) -> None:
        used = [b for b in range(NUM_BLOCKS) if self.users[b]]
        block = data.draw(st.sampled_from(used))
        self.pool.remember([block], [name])
        if name not in self.cached and not self.is_cached(block):
            self.cached[name] = block

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.cached)))
        block = self.pool.find(name)
        assert block is not None
        self.pool.share([block])
        self.users[block] += 1
        if block in self.free:
            self.free.remove(block)

    @precondition(lambda self: self.cached)
    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        idle = [b for b in self.free if self.is_cached(b)]
        self.free = idle[::-1] + [b for b in self.free if not self.is_cached(b)]
        self.cached.clear()

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = self.cached[data.draw(st.sampled_from(sorted(self.cached)))]
        self.pool.forget(block)
        self.drop(block)
        if block in self.free:
            self.free.remove(block)
            self.free.insert(0, block)

    @invariant()
    def agrees(self) -> None:
        most = max(self.users, default=0)
        tables = {
            str(i): [block for block, count in enumerate(self.users) if count > i]
            for i in range(most)
        }
        self.pool.check_integrity(tables)
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_used == sum(count > 0 for count in self.users)
        assert [self.pool.ref_count(b) for b in range(NUM_BLOCKS)] == self.users
        for name in (b"a", b"b", b"c", b"d"):
            assert self.pool.find(name) == self.cached.get(name)

    @rule()
    def take_changes(self) -> None:
        changes = self.pool.take_changes() if self.pool.has_changes else None
        if changes is not None:
            if changes.emptied:
                self.reported.clear()
            self.reported.difference_update(changes.left)
            self.reported.update(changes.entered)
        assert self.reported == set(self.cached)
        assert self.pool.take_changes() is None


PoolMachine.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
TestPool = PoolMachine.TestCase


def test_freeing_twice_is_caught() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.release(blocks)


def test_a_pool_that_is_not_asked_for_changes_notes_none() -> None:
    pool = BlockPool(2)
    pool.remember(pool.allocate(1), [b"a"])
    assert pool.take_changes() is None


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        BlockPool(0)
    assert BlockPool(1).allocate(1) == [0]


def test_a_block_that_was_used_again_is_evicted_after_those_that_were_not() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.remember([first, second], [b"a", b"b"])
    pool.release([first])
    pool.release([second])
    pool.share([first])
    pool.release([first])
    assert pool.allocate(2) == [second, first]
