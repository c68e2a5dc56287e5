"""The tiers' bookkeeping against a model of it: what a real executor would have in each place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.core.batch import AT_PEER, ON_DISK, BlockCopies, BlockSave
from quire.core.config import TierConfig
from quire.core.messages import HostTierStats
from quire.kv.host_tier import HostTier
from quire.kv.lower_tiers import PromisedBlocks
from tests.examples import examples
from tests.simulation.host_tier import ModelledFiles

KEYS = [bytes([n]) for n in range(12)]
SWAP, OFFLOAD, FILES = 6, 4, 3
NOTHING = np.zeros(0, np.uint64)


def files_of(*keys: bytes, most: int = 99) -> ModelledFiles:
    """Files of some blocks."""
    files = ModelledFiles(most)
    for key in keys:
        files.write(key, NOTHING)
    return files


class Places:
    """Slots and files, and the copies done as an executor does them."""

    def __init__(self, files: ModelledFiles) -> None:
        self.slots: dict[int, bytes] = {}
        self.files = files

    def copy(self, copies: BlockCopies | None) -> None:
        if copies is None:
            return
        written = [slot for _, slot, _ in copies.stores]
        assert len(set(written)) == len(written), "a slot is written twice in a step"
        for key in copies.dropped:
            self.files.contents.pop(key, None)
        for _, key in copies.saves:
            self.files.write(key, NOTHING)
        for _, slot, key in copies.stores:
            self.slots[slot] = key
        for slot, _, key in copies.loads:
            assert slot == ON_DISK or self.slots[slot] == key


class TierMachine(RuleBasedStateMachine):
    """Random steps; whatever the tier says it has must be where it says."""

    def __init__(self) -> None:
        super().__init__()
        files = ModelledFiles(FILES)
        self.tier = HostTier(TierConfig(SWAP, OFFLOAD, directory="modelled"), [files])
        self.places = Places(files)
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
        assert not self.tier.find(key) or load.slot == ON_DISK or key in self.places.files.contents

    @rule()
    def forget_all(self) -> None:
        self.step()
        self.tier.forget_all()
        assert not any(self.tier.find(key) for key in KEYS)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=6, unique=True))
    def save(self, keys: list[bytes]) -> None:
        self.tier.save(list(range(len(keys))), keys)

    @rule()
    def step(self) -> None:
        self.tier.begin_step()
        self.places.copy(self.tier.take_copies())

    @invariant()
    def agrees(self) -> None:
        self.tier.check_integrity()


TierMachine.TestCase.settings = settings(
    max_examples=examples(120), stateful_step_count=40, deadline=None
)
TestTier = TierMachine.TestCase


def test_host_memory_is_searched_before_files() -> None:
    tier = HostTier(TierConfig(num_offload_slots=2), [files_of(*KEYS[1:4])])
    for block, key in enumerate(KEYS[:4]):
        tier.offload(block, key)
        tier.take_copies()
    assert [tier.find(key) for key in KEYS[:4]] == [False, True, True, True]
    assert tier.load(KEYS[1], 7).slot == ON_DISK
    assert tier.load(KEYS[3], 8).slot >= 0


def saving(*keys: bytes) -> HostTier:
    """A tier above files of `keys`."""
    return HostTier(TierConfig(directory="modelled"), [files_of(*keys)])


def saves(tier: HostTier) -> list[BlockSave]:
    """What the next step writes to files."""
    tier.begin_step()
    copies = tier.take_copies()
    return copies.saves if copies else []


def test_a_block_is_written_behind_the_step_that_computes_it_and_once() -> None:
    tier = saving(KEYS[2])
    tier.begin_step()
    tier.save([4, 5, 6], KEYS[:3])
    assert tier.has_saves
    assert tier.take_copies() is None
    tier.begin_step()
    assert tier.has_saves
    assert saves(tier) == [BlockSave(4, KEYS[0]), BlockSave(5, KEYS[1])]
    assert not tier.has_saves
    assert tier.stats().saved == 2


def test_what_a_failed_step_computed_is_not_written() -> None:
    tier = saving()
    tier.save([4, 5], KEYS[:2])
    tier.forget_saves({4})
    tier.begin_step()
    tier.save([6], KEYS[2:3])
    tier.forget_saves({6})
    assert saves(tier) == [BlockSave(5, KEYS[1])]
    tier.save([7, 8], KEYS[3:5])
    tier.begin_step()
    tier.forget_saves({7})
    copies = tier.take_copies()
    assert copies.saves == [BlockSave(8, KEYS[4])]


@pytest.mark.parametrize("late", [False, True], ids=["a step before", "in the same step"])
def test_a_block_with_a_new_use_is_written_before_it_and_once(*, late: bool) -> None:
    """A block enters late if its request is preempted, and the step gives it to another one."""
    tier = saving()
    if late:
        tier.begin_step()
    tier.save([4], KEYS[:1])
    if not late:
        tier.begin_step()
    tier.offload(4, KEYS[0])
    tier.save([4], KEYS[1:2])
    copies = tier.take_copies()
    assert copies.saves == [BlockSave(4, KEYS[0])]
    assert saves(tier) == [BlockSave(4, KEYS[1])]


def test_wrong_values_are_removed_from_files_and_not_written() -> None:
    tier = saving(KEYS[0])
    tier.save([4, 5], KEYS[1:3])
    tier.discard(KEYS[:2])
    tier.begin_step()
    copies = tier.take_copies()
    assert copies.dropped == [KEYS[0]]
    assert copies.saves == [BlockSave(5, KEYS[2])]


def test_wrong_values_are_removed_from_host_memory() -> None:
    tier = HostTier(TierConfig(num_offload_slots=1))
    tier.offload(0, KEYS[0])
    tier.discard(KEYS[:2])
    assert not tier.find(KEYS[0])
    tier.check_integrity()


@pytest.mark.parametrize("discards", [False, True])
def test_what_another_engine_promised_is_found_until_it_fails(discards: bool) -> None:
    tier = HostTier(TierConfig(directory="modelled"), [files_of(KEYS[1]), PromisedBlocks()])
    assert tier.may_find
    tier.promise(KEYS[:1])
    loads = [tier.load(key, 3) for key in KEYS[:3]]
    # The last one's file was evicted since it was found: the load will fail.
    assert [load.slot for load in loads] == [AT_PEER, ON_DISK, ON_DISK]
    if discards:
        tier.discard(KEYS[:1])
    else:
        tier.lose(loads[0])
    assert not tier.find(KEYS[0])


def test_a_block_whose_file_was_evicted_is_written_when_it_leaves_the_cache() -> None:
    tier = saving(KEYS[0])
    for block, key in enumerate(KEYS[:2]):
        tier.offload(block, key)
    assert saves(tier) == [BlockSave(1, KEYS[1])]


def test_a_reset_writes_nothing_of_before() -> None:
    tier = saving(KEYS[0])
    tier.save([4], KEYS[1:2])
    tier.begin_step()
    tier.save([5], KEYS[2:3])
    tier.forget_all()
    assert not tier.find(KEYS[0])
    assert saves(tier) == []


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
    files = files_of(KEYS[0])
    tier = HostTier(TierConfig(num_swap_slots=4, num_offload_slots=2), [files])
    tier.swap_out("a", 1, [5, 6, 7], 40)
    for block, key in enumerate(KEYS[1:3]):
        tier.offload(block, key)
        copies = tier.take_copies()
        assert [store.block for store in copies.stores][-1] == block
    assert [tier.in_memory(key) for key in KEYS[:4]] == [False, True, True, False]
    assert tier.may_find
    loads = [tier.swap_in("a", index, block) for index, block in ((1, 8), (2, 9))]
    loads += [tier.load(key, block) for block, key in enumerate(KEYS[:2])]
    copies = tier.take_copies()
    assert copies.loads == loads
    for load in loads[2:]:
        tier.lose(load)
    assert tier.take_copies() is None
    assert tier.stats() == HostTierStats(
        num_requests_swapped=1,
        slots_used=3 + 1,
        slots_total=6,
        saved=0,
        swap_preemptions=1,
        swapped_out=3,
        swapped_in=2,
        stored=2,
        loaded=2,
        failed=2,
    )
    swapped = tier.swapped("a")
    assert (swapped.first, swapped.num_tokens, swapped.private) == (1, 40, False)
    assert len({*swapped.slots, *swapped.keys}) == 6
    assert [load.slot for load in loads[:2]] == swapped.slots[:2]
    assert [load.key for load in loads[:2]] == swapped.keys[:2]


def test_a_failed_step_leaves_nothing_that_it_was_to_write() -> None:
    tier = HostTier(TierConfig(2, 1, directory="modelled"), [files_of(KEYS[0])])
    tier.offload(1, KEYS[1])
    tier.take_copies()
    tier.discard(KEYS[:1])
    tier.offload(2, KEYS[2])
    tier.swap_out("a", 0, [3], 8)
    copies = tier.take_copies()
    assert copies.dropped == [KEYS[0]]
    tier.undo(copies)
    assert not any(tier.in_memory(key) for key in KEYS)
    assert tier.swapped("a") is None
    assert tier.has_room(2)
    tier.check_integrity()
    again = tier.take_copies()
    assert again.dropped == [KEYS[0]]  # the step may not have come so far
    assert (again.stores, again.saves, again.loads) == ([], [], [])


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
    tier = HostTier(TierConfig(num_swap_slots=2, num_offload_slots=1), [])
    tier.offload(1, KEYS[1])
    tier.swap_out("a", 0, [3], 8)
    tier.take_copies()
    tier.forget_all()
    tier.check_integrity()
    assert not tier.may_find
    swapped = tier.swapped("a")
    assert swapped.private
    assert tier.take_copies() is None


def test_what_was_loaded_again_leaves_its_slot_last() -> None:
    tier = HostTier(TierConfig(num_offload_slots=2))
    for block, key in enumerate(KEYS[:2]):
        tier.offload(block, key)
    tier.take_copies()
    tier.load(KEYS[0], 5)
    tier.take_copies()
    tier.offload(2, KEYS[2])
    assert [tier.find(key) for key in KEYS[:3]] == [True, False, True]
