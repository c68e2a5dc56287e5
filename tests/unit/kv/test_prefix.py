"""Prefixes of models with recurrent layers, and of those with sliding windows."""

from __future__ import annotations

import numpy as np

from quire.core.batch import ON_DISK, BlockLoad
from quire.core.config import CacheConfig, StateConfig, TierConfig
from quire.kv.manager import KVCacheManager
from quire.kv.prefix import TO_LOAD
from tests.simulation.host_tier import ModelledFiles
from tests.unit.kv.test_manager import BLOCK, admit, request


def recurrent(files: ModelledFiles | None = None, slots: int = 0) -> KVCacheManager:
    """Return a manager that takes a snapshot after each block."""
    states = StateConfig(num_slots=16, per_request=2, spacing=BLOCK)
    tiers = TierConfig(4, slots, slots, "modelled" if files else None)
    return KVCacheManager(
        CacheConfig(BLOCK, 16, states=states, tiers=tiers), lower=[files] if files else []
    )


def test_who_waits_for_a_state_of_this_step() -> None:
    kv = recurrent()
    admit(kv, request("first", [1] * 40))
    second, whole = request("second", [1] * 40), request("whole", [1] * 40, prompt_logprobs=1)
    for one in (second, whole):
        kv.hasher.extend(one)
    assert kv.find_prefix(second) == []
    blocks = kv.tables["first"]
    assert kv.arrives(second, [])
    assert kv.arrives(second, blocks[:1])
    assert not kv.arrives(second, blocks[:2])
    assert not kv.arrives(whole, [])
    same = request("same", [1] * 2 * BLOCK)  # computes its last token, so its last block
    kv.hasher.extend(same)
    assert kv.arrives(same, [])
    assert not kv.arrives(same, blocks[:1])
    kv.begin_step()
    assert not kv.arrives(second, [])
    assert kv.find_prefix(second) == blocks[:2]


def test_discarded_states_are_never_found_again() -> None:
    """Even behind blocks that another request has computed since."""
    kv = recurrent()
    first = request("first", [1] * 40)
    admit(kv, first)
    kv.begin_step()
    assert kv.states.usable(first.block_hashes) == 2
    kv.discard(first)
    assert kv.states.usable(first.block_hashes) == 0


def test_blocks_that_left_the_window_before_they_were_known_are_not_cached() -> None:
    kv = KVCacheManager(CacheConfig(BLOCK, 8, sliding_window=BLOCK))
    r = request("r", [1] * 64)
    kv.admit(r, [], r.num_tokens)
    left = kv.tables["r"][2:4]
    kv.slide(r, 0, 2)
    kv.enter(r, r.num_tokens)
    assert kv.entered.blocks == left
    assert [kv.pool.find(each) for each in r.block_hashes] == [None, None, *left]
    kv.check_integrity()


def test_what_a_failed_step_computes_is_not_found_and_not_written() -> None:
    kv = recurrent(ModelledFiles(8))
    first = request("first", [1] * 40)
    admit(kv, first)
    kv.begin_step()
    copies = kv.take_copies()
    assert (len(copies.saves), len(copies.states.saves)) == (2, 2)
    second = request("second", [2] * 40)
    admit(kv, second)
    assert kv.has_saves
    kv.forget(kv.entered)
    assert not kv.has_saves
    kv.begin_step()
    assert kv.take_copies() is None
    assert kv.num_found(second) == kv.states.usable(second.block_hashes) == 0
    assert kv.num_found(first) == kv.states.usable(first.block_hashes) == 2


def test_discarded_blocks_are_not_written() -> None:
    kv = recurrent(ModelledFiles(8))
    first = request("first", [1] * 40)
    kv.admit(first, [], 40)
    kv.enter(first, BLOCK)
    assert kv.has_saves
    kv.discard(first)
    kv.begin_step()
    assert kv.take_copies() is None


def test_blocks_are_counted_wherever_they_are_up_to_the_last_token() -> None:
    files = ModelledFiles(8)
    kv = recurrent(files)
    first = request("first", [1] * 3 * BLOCK)
    admit(kv, first)
    files.contents[first.block_hashes[2]] = np.zeros(0, np.uint64)
    kv.pool.forget(kv.tables["first"][2])
    assert recurrent().num_found(request("none", [1] * 40)) == 0
    for num_tokens, found in ((3 * BLOCK, 2), (3 * BLOCK + 1, 3), (4 * BLOCK + 1, 3)):
        assert kv.num_found(request("again", [1] * num_tokens)) == found


def test_loads_are_cancelled_where_they_come_from() -> None:
    """Those of blocks and of states, but not those from memory, which have ended."""
    kv = recurrent(ModelledFiles(8))
    loads = [BlockLoad(slot, block, b"") for block in (0, ~0) for slot in (ON_DISK, 0)]
    kv.cancel_loads(loads[2:])
    copies = kv.take_copies()
    assert copies.cancelled == []
    kv.cancel_loads(loads)
    for _ in range(2):  # again, if the step that was to cancel them fails
        copies = kv.take_copies()
        assert copies.cancelled == copies.states.cancelled == [0]
        kv.undo_copies(copies)


def test_a_request_with_states_needs_slots_of_its_own() -> None:
    kv = recurrent()
    kv.states.pool.allocate(kv.states.pool.num_free - 2)
    asked = request("asked", [1] * 40)
    assert not kv.can_admit(asked, [], 0)
    assert kv.can_admit(asked, [], 0, 1)


def test_a_state_in_files_is_loaded_with_the_blocks_before_it() -> None:
    files = ModelledFiles(8)
    kv = recurrent(files)
    asked, again = request("asked", [1] * 65), request("again", [1] * 65)
    hashes = kv.hasher.extend(asked)
    for key in hashes:
        files.contents[key] = np.zeros(0, np.uint64)
    assert kv.find_stored(asked, []) is None  # without a state
    files.of_states.contents[hashes[1]] = np.zeros(0, np.uint64)
    stored = kv.find_stored(asked, [])
    assert (stored.blocks, stored.keys, stored.state) == ([TO_LOAD] * 2, hashes[:2], hashes[1])
    assert not kv.can_swap_out(asked, 0)
    table, loads = kv.admit_stored(asked, stored, 65)
    start = kv.states.first("asked").start
    assert [(load.key, load.target, load.of_state) for load in loads] == [
        (hashes[0], table[0], False), (hashes[1], table[1], False), (hashes[1], start, True)
    ]  # fmt: skip
    waiting = kv.find_stored(again, [])
    assert waiting.arriving
    assert kv.end_loads(loads, ())
    kv.enter(asked, 2 * BLOCK)
    kv.begin_step()
    assert kv.find_prefix(again) == table[:2]


def test_a_state_in_memory_is_loaded_behind_blocks_in_the_cache() -> None:
    """And enters the prefix cache with the last of them."""
    kv = recurrent(slots=4)
    first, again = request("first", [1] * 40), request("again", [1] * 40)
    admit(kv, first)
    blocks = kv.tables["first"][:2]
    kv.begin_step()
    kv.free(first)
    slots = kv.states.pool.allocate(kv.states.pool.num_free)  # evicts the snapshots
    kv.states.pool.release(slots)
    assert kv.find_prefix(again) == []
    stored = kv.find_stored(again, [])
    assert (stored.blocks, stored.state) == (blocks, first.block_hashes[1])
    _, [load] = kv.admit_stored(again, stored, 40)
    assert load.of_state
    assert kv.end_loads([load], ())
    kv.enter(again, 2 * BLOCK)
    kv.begin_step()
    assert kv.find_prefix(first) == blocks
