"""The tiers' bookkeeping against a model of it: what a real executor would have in each place."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.core.batch import ON_DISK, BlockCopies
from quire.core.config import TierConfig
from quire.core.messages import HostTierStats
from quire.kv.host_tier import HostTier

KEYS = [bytes([n]) for n in range(12)]
SWAP, OFFLOAD, FILES = 6, 4, 3


class Places:
    """Slots and files, and the copies done as an executor does them."""

    def __init__(self) -> None:
        self.slots: dict[int, bytes] = {}
        self.files: set[bytes] = set()

    def copy(self, copies: BlockCopies | None) -> None:
        if copies is None:
            return
        written = [slot for _, slot, _ in copies.stores]
        assert len(set(written)) == len(written), "a slot is written twice in a step"
        for key in copies.dropped:
            self.files.remove(key)
        for slot, key in copies.spills:
            assert self.slots[slot] == key
            self.files.add(key)
        for _, slot, key in copies.stores:
            self.slots[slot] = key
        for slot, _, key in copies.loads:
            assert key in self.files if slot == ON_DISK else self.slots[slot] == key


class TierMachine(RuleBasedStateMachine):
    """Random steps; whatever the tier says it has must be where it says."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = HostTier(TierConfig(SWAP, OFFLOAD, FILES))
        self.places = Places()
        self.swapped: dict[str, int] = {}
        self.names = iter(range(10**6))

    @rule(count=st.integers(1, SWAP))
    def swap_out(self, count: int) -> None:
        if not self.tier.has_room(count):
            return
        name = str(next(self.names))
        self.tier.swap_out(name, 0, list(range(count)), count * 8)
        self.swapped[name] = count

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.swapped)))
        for index in range(self.swapped[name]):
            self.tier.swap_in(name, index, index)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def drop_swapped(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.swapped)))
        self.step()
        self.tier.drop_swapped(name)
        del self.swapped[name]

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=6, unique=True))
    def offload(self, keys: list[bytes]) -> None:
        for key in keys:
            self.tier.offload(0, key)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=6, unique=True))
    def load(self, keys: list[bytes]) -> None:
        found = [key for key in keys if self.tier.find(key)]
        for key in found:
            self.tier.hold(key)
        for key in KEYS[:3]:
            self.tier.offload(0, key)
        for key in found:
            self.tier.load(key, 0)

    @precondition(lambda self: any(self.tier.find(key) for key in KEYS))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key in KEYS if self.tier.find(key)]))
        load = self.tier.load(key, 0)
        self.step()
        self.tier.lose(load)
        assert not self.tier.find(key) or load.slot != ON_DISK

    @rule()
    def forget_all(self) -> None:
        self.step()
        self.tier.forget_all()
        assert not any(self.tier.find(key) for key in KEYS)

    @rule()
    def step(self) -> None:
        self.places.copy(self.tier.take_copies())

    @invariant()
    def agrees(self) -> None:
        self.tier.check_integrity()


TierMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestTier = TierMachine.TestCase


def test_the_least_recently_used_go_to_files_and_come_back() -> None:
    tier = HostTier(TierConfig(num_offload_slots=2, num_files=1))
    for block, key in enumerate(KEYS[:4]):
        tier.offload(block, key)
        tier.take_copies()
    assert [tier.find(key) for key in KEYS[:4]] == [False, True, True, True]
    assert tier.load(KEYS[1], 7).slot == ON_DISK
    assert tier.load(KEYS[3], 8).slot >= 0


def test_a_block_that_is_there_already_is_not_stored_again() -> None:
    tier = HostTier(TierConfig(num_offload_slots=2))
    tier.offload(0, KEYS[0])
    assert tier.take_copies() is not None
    tier.load(KEYS[0], 1)
    tier.take_copies()
    tier.offload(1, KEYS[0])
    assert tier.take_copies() is None


def test_a_block_that_is_evicted_again_leaves_its_slot_last() -> None:
    tier = HostTier(TierConfig(num_offload_slots=2))
    for key in (KEYS[0], KEYS[1], KEYS[0], KEYS[2]):
        tier.offload(0, key)
        tier.take_copies()
    assert [tier.find(key) for key in KEYS[:3]] == [True, False, True]


def test_what_a_step_uses_is_not_evicted_in_it() -> None:
    tier = HostTier(TierConfig(num_offload_slots=1))
    tier.offload(0, KEYS[0])
    tier.offload(1, KEYS[1])  # the only slot was just taken
    assert tier.find(KEYS[0])
    assert not tier.find(KEYS[1])
    tier.take_copies()
    tier.hold(KEYS[0])
    tier.offload(1, KEYS[1])
    assert tier.find(KEYS[0])


@pytest.mark.parametrize("free", [2, 3])
def test_swap_slots_are_bounded(free: int) -> None:
    tier = HostTier(TierConfig(num_swap_slots=3))
    tier.swap_out("a", 0, [5] * (3 - free), 10)
    assert tier.has_room(free)
    assert not tier.has_room(free + 1)
    tier.drop_swapped("a")
    tier.drop_swapped("a")
    assert tier.has_room(3)


def test_it_counts_what_it_did_and_where_things_are() -> None:
    tier = HostTier(TierConfig(num_swap_slots=4, num_offload_slots=2, num_files=3))
    tier.swap_out("a", 1, [5, 6, 7], 40)
    for block, key in enumerate(KEYS[:3]):
        tier.offload(block, key)
        copies = tier.take_copies()
        assert copies is not None
        assert [store.block for store in copies.stores][-1] == block
    assert [tier.in_memory(key) for key in KEYS[:4]] == [False, True, True, False]
    assert tier.num_kept == 3
    loads = [tier.swap_in("a", index, block) for index, block in enumerate((8, 9))]
    loads += [tier.load(key, block) for block, key in enumerate(KEYS[:2])]
    copies = tier.take_copies()
    assert copies is not None
    assert copies.loads == loads
    for load in loads[2:]:
        tier.lose(load)
    copies = tier.take_copies()
    assert copies is not None
    assert copies.dropped == [KEYS[0]]
    assert (copies.loads, copies.stores, copies.spills) == ([], [], [])
    assert tier.take_copies() is None
    assert tier.stats() == HostTierStats(
        num_requests_swapped=1,
        slots_used=3 + 1,
        slots_total=6,
        files_used=0,
        swap_preemptions=1,
        swapped_out=3,
        swapped_in=2,
        stored=3,
        loaded=2,
        failed=2,
    )
    swapped = tier.swapped("a")
    assert swapped is not None
    assert (swapped.first, swapped.num_tokens, swapped.private) == (1, 40, False)
    assert len({*swapped.slots, *swapped.keys}) == 6


def test_a_failed_step_leaves_nothing_that_it_was_to_write() -> None:
    tier = HostTier(TierConfig(num_swap_slots=2, num_offload_slots=1, num_files=1))
    for block, key in enumerate(KEYS[:2]):
        tier.offload(block, key)
        tier.take_copies()
    tier.offload(2, KEYS[2])  # drops the file, and spills and stores
    tier.swap_out("a", 0, [3], 8)
    copies = tier.take_copies()
    assert copies is not None
    assert copies.dropped == [KEYS[0]]
    tier.undo(copies)
    assert not any(tier.find(key) for key in KEYS)
    assert tier.swapped("a") is None
    assert tier.has_room(2)
    tier.check_integrity()
    again = tier.take_copies()
    assert again is not None
    assert again.dropped == [KEYS[0]]  # the step may not have come so far
    assert (again.stores, again.spills, again.loads) == ([], [], [])


def test_swap_slots_that_an_earlier_step_wrote_outlive_a_failed_one() -> None:
    tier = HostTier(TierConfig(num_swap_slots=2))
    tier.swap_out("a", 0, [3], 8)
    tier.take_copies()
    tier.swap_out("b", 0, [4], 8)
    copies = tier.take_copies()
    assert copies is not None
    tier.undo(copies)
    assert tier.swapped("a") is not None
    assert tier.swapped("b") is None


def test_a_reset_makes_swapped_blocks_private_and_frees_the_others() -> None:
    tier = HostTier(TierConfig(num_swap_slots=2, num_offload_slots=1, num_files=1))
    for block, key in enumerate(KEYS[:2]):
        tier.offload(block, key)
        tier.take_copies()
    tier.swap_out("a", 0, [3], 8)
    tier.take_copies()
    tier.forget_all()
    tier.check_integrity()
    assert tier.num_kept == 0
    swapped = tier.swapped("a")
    assert swapped is not None
    assert swapped.private
    copies = tier.take_copies()
    assert copies is not None
    assert copies.dropped == [KEYS[0]]


def test_a_file_that_the_step_reads_is_not_dropped_in_it() -> None:
    tier = HostTier(TierConfig(num_offload_slots=1, num_files=1))
    for block, key in enumerate(KEYS[:2]):
        tier.offload(block, key)
        tier.take_copies()
    tier.hold(KEYS[0])  # in the only file
    tier.offload(2, KEYS[2])
    assert [tier.find(key) for key in KEYS[:3]] == [True, False, True]
    tier.load(KEYS[0], 5)
    copies = tier.take_copies()
    assert copies is not None
    assert (copies.dropped, copies.spills) == ([], [])


def test_what_was_loaded_again_leaves_its_slot_last() -> None:
    tier = HostTier(TierConfig(num_offload_slots=2))
    for block, key in enumerate(KEYS[:2]):
        tier.offload(block, key)
    tier.take_copies()
    tier.load(KEYS[0], 5)
    tier.take_copies()
    tier.offload(2, KEYS[2])
    assert [tier.find(key) for key in KEYS[:3]] == [True, False, True]
