"""Slots of recurrent states, and which of them are snapshots."""

from __future__ import annotations

from quire.core.batch import BlockSave
from quire.core.config import StateConfig, TierConfig
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.kv.host_tier import HostTier
from quire.kv.states import StateCache
from tests.unit.kv.test_host_tier import saves, saving

BLOCK = 16


def request(num_tokens: int) -> Request:
    made = Request("r", [7] * num_tokens, SamplingParams(), arrival_time=0, max_model_len=9_999)
    made.block_hashes += [bytes([index]) * 32 for index in range(num_tokens // BLOCK)]
    return made


def admitted(num_tokens: int) -> tuple[StateCache, Request]:
    cache = StateCache(StateConfig(40, 0, 4096), BLOCK)
    asked = request(num_tokens)
    cache.begin_step()
    cache.admit(asked, 0, 0)
    return cache, asked


def snapshots(cache: StateCache) -> list[int]:
    """Return after how many blocks a state is stored."""
    return [index + 1 for index, slot in enumerate(cache.table("r")) if slot >= 0]


def test_a_snapshot_is_taken_behind_the_last_block_before_the_last_token() -> None:
    """A prompt of whole blocks computes its last token anew: its last block is not behind it."""
    for num_tokens, last in ((4 * BLOCK, 3), (4 * BLOCK + 1, 4)):
        cache, _ = admitted(num_tokens)
        cache.extend("r", num_tokens // BLOCK)
        assert snapshots(cache)[0] == last


def test_a_snapshot_enters_once() -> None:
    cache, asked = admitted(4 * BLOCK + 1)
    cache.extend("r", 4)
    cache.enter("r", asked.block_hashes, 0, 4)
    assert len(cache.entered) == 1
    cache.enter("r", asked.block_hashes, 4, 4)
    assert len(cache.entered) == 1


def test_a_stored_state_that_a_step_computes_is_not_loaded_again() -> None:
    cache = StateCache(StateConfig(40, 0, 4096), BLOCK, HostTier(TierConfig(num_offload_slots=8)))
    asked = request(4 * BLOCK + 1)
    keys = asked.block_hashes
    cache.begin_step()
    assert cache.stored(keys) == (0, None)
    (slot,) = cache.pool.allocate(1)
    cache.pool.remember([slot], [keys[3]])
    cache.pool.release([slot])
    cache.pool.allocate(cache.pool.num_free)  # evicts it into the tier
    assert cache.stored(keys) == (4, keys[3])
    cache.tier.offload(0, keys[2])
    assert cache.stored([*keys[:3], b""]) == (3, keys[2])
    cache.begin_step()
    cache.pool.remember([slot], keys[3:])
    cache.entered = [slot]
    assert cache.stored(keys) == (3, keys[2])


def test_a_long_prompt_has_snapshots_at_equal_distances() -> None:
    """Of 2,048 tokens: at each 256th, an eighth of it."""
    cache, _ = admitted(2048)
    cache.extend("r", 128)
    assert snapshots(cache) == [*range(16, 128, 16), 127, 128]


def test_a_state_is_not_evicted_from_the_tier_to_make_room_for_it() -> None:
    cache = StateCache(StateConfig(2, 0, 4096), BLOCK, HostTier(TierConfig(num_offload_slots=1)))
    asked = request(4 * BLOCK + 1)
    keys = asked.block_hashes
    cache.begin_step()
    cache.tier.offload(0, keys[3])
    cache.tier.take_copies()
    slots = cache.pool.allocate(2)
    cache.pool.remember(slots, keys[:2])
    cache.pool.release(slots)
    load = cache.admit(asked, 4, 0, stored=keys[3])
    assert (load.key, load.slot) == (keys[3], 0)
    assert cache.tier.find(keys[3])


def test_a_snapshot_behind_one_block_is_usable() -> None:
    cache = StateCache(StateConfig(4, 0, 4096), BLOCK)
    (slot,) = cache.pool.allocate(1)
    keys = request(2 * BLOCK).block_hashes
    cache.pool.remember([slot], keys[:1])
    assert cache.usable(keys) == 1
    assert cache.stored(keys) == (1, None)


def test_the_next_block_of_an_answer_replaces_a_snapshot_unless_it_is_at_a_distance() -> None:
    """Of a prompt of 14 blocks: snapshots each 16 blocks stay, and that behind block 15 goes."""
    cache, asked = admitted(14 * BLOCK + 1)
    asked.block_hashes += [bytes([99, index]) * 16 for index in range(4)]
    for count in (14, 15, 16, 17):
        cache.extend("r", count)
        cache.enter("r", asked.block_hashes, count - 1, count)
        cache.begin_step()
    found = [cache.pool.find(asked.block_hashes[count - 1]) for count in (14, 15, 16, 17)]
    assert [slot is not None for slot in found] == [True, False, True, True]
    cache.check_integrity()
    assert cache.num_held == 1
    cache.free("r")
    assert cache.pool.num_used == cache.num_held == 0


def test_a_request_begins_with_the_snapshot_behind_its_prefix_and_keeps_it() -> None:
    cache = StateCache(StateConfig(5, 1, 4096), BLOCK)
    asked = request(4 * BLOCK + 1)
    slots = cache.pool.allocate(3)
    cache.pool.remember(slots, asked.block_hashes[:3])
    cache.pool.release(slots)
    cache.admit(asked, 2, 3)
    assert cache.first("r").start == slots[1]
    cache.check_integrity()
    cache.pool.allocate(cache.pool.num_free)
    assert cache.usable(asked.block_hashes) == 2


def test_there_is_room_for_working_slots_and_the_snapshot_that_they_begin_with() -> None:
    cache = StateCache(StateConfig(4, 2, 4096), BLOCK)
    assert cache.has_room(0)
    cache.admit(request(BLOCK), 0, 0)
    assert not cache.has_room(0)
    assert cache.has_room(1)


def test_snapshots_leave_room_for_another_request() -> None:
    cache = StateCache(StateConfig(3, 1, 4096), BLOCK)
    cache.admit(request(BLOCK + 1), 0, 0)
    cache.extend("r", 3)
    assert snapshots(cache) == [1]


def test_no_snapshots_are_taken_for_no_prefix_cache() -> None:
    cache = StateCache(StateConfig(40, 0, 4096), BLOCK)
    cache.admit(request(4 * BLOCK + 1), 0, None)
    cache.extend("r", 4)
    assert snapshots(cache) == []


def test_a_reset_forgets_all_snapshots_and_present_requests_take_no_more() -> None:
    cache = StateCache(StateConfig(40, 0, 4096), BLOCK, HostTier(TierConfig(num_offload_slots=1)))
    asked = request(8 * BLOCK + 1)
    cache.begin_step()
    cache.admit(asked, 0, 4)
    cache.extend("r", 4)
    cache.enter("r", asked.block_hashes, 0, 4)
    cache.begin_step()
    cache.tier.offload(0, asked.block_hashes[7])
    assert cache.stored(asked.block_hashes[:7]) == (4, None)
    assert cache.stored(asked.block_hashes) == (8, asked.block_hashes[7])
    cache.reset()
    assert cache.stored(asked.block_hashes) == (0, None)
    cache.extend("r", 8)
    assert snapshots(cache) == [4]


def test_snapshots_of_a_prompt_are_written_to_files_and_those_of_an_answer_are_not() -> None:
    tier = saving()
    cache = StateCache(StateConfig(40, 0, 4096), BLOCK, tier)
    asked = request(3 * BLOCK)
    keys = asked.block_hashes
    cache.admit(asked, 0, 1)
    cache.extend("r", 3)
    cache.enter("r", keys, 0, 3)
    assert saves(tier) == [BlockSave(cache.table("r")[n], keys[n]) for n in (0, 1)]
    cache.begin_step()
    assert cache.pool.num_used == 1  # no later step begins with the others
