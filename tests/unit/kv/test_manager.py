from __future__ import annotations

import numpy as np
import pytest

from quire.core.batch import ON_DISK
from quire.core.config import CacheConfig, TierConfig
from quire.core.options import NO_OPTIONS, RequestInputs, RequestOptions
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.kv.bounds import most_blocks
from quire.kv.manager import NEVER, KVCacheManager
from quire.kv.prefix import NO_BLOCK, TO_LOAD, Entered
from tests.simulation.host_tier import ModelledFiles

BLOCK = 16


def manager(num_blocks: int, *, caching: bool = True) -> KVCacheManager:
    return KVCacheManager(CacheConfig(BLOCK, num_blocks, caching))


def request(
    name: str,
    token_ids: list[int],
    options: RequestOptions = NO_OPTIONS,
    prompt_logprobs: int | None = None,
) -> Request:
    params, inputs = SamplingParams(prompt_logprobs=prompt_logprobs), RequestInputs(options)
    return Request(name, token_ids, params, arrival_time=0, max_model_len=9999, inputs=inputs)


def admit(kv: KVCacheManager, r: Request) -> list[int]:
    prefix = kv.find_prefix(r)
    assert kv.can_admit(r, prefix, reserved=0)
    kv.admit(r, prefix, r.num_tokens)
    kv.enter(r, r.num_tokens)
    return prefix


def test_twelve_of_sixteen_cached_and_four_free_is_admitted() -> None:
    kv = manager(16)
    first = request("first", list(range(12 * BLOCK)))
    admit(kv, first)
    assert kv.pool.num_free == 4
    second = request("second", list(range(12 * BLOCK)) + [7] * (4 * BLOCK))
    assert len(admit(kv, second)) == 12
    assert kv.pool.num_free == 0
    kv.check_integrity()


def test_idle_cached_blocks_are_not_counted_twice() -> None:
    kv = manager(16)
    first = request("first", list(range(12 * BLOCK)))
    admit(kv, first)
    kv.free(first)
    assert kv.pool.num_free == 16
    second = request("second", list(range(12 * BLOCK)) + [7] * (4 * BLOCK))
    assert kv.can_admit(second, kv.find_prefix(second), reserved=0)
    assert not kv.can_admit(second, kv.find_prefix(second), reserved=1)


def test_runs_have_the_tokens_of_blocks_that_enter() -> None:
    kv = KVCacheManager(CacheConfig(BLOCK, 16, report_tokens=True))
    first = request("first", list(range(3 * BLOCK + 5)))
    kv.admit(first, [], first.num_tokens)
    kv.enter(first, BLOCK + 3)
    kv.enter(first, 3 * BLOCK)
    hashes = first.block_hashes
    whole, rest = kv.take_runs()
    assert (whole.first, whole.hashes, whole.before) == (0, hashes[:1], None)
    assert (rest.first, rest.hashes, rest.before) == (1, hashes[1:3], hashes[0])
    assert whole.token_ids.tolist() == list(range(BLOCK))
    assert rest.token_ids.tolist() == list(range(BLOCK, 3 * BLOCK))
    assert rest.inputs is first.inputs
    assert kv.take_runs() == []
    again = request("again", list(range(3 * BLOCK)))
    assert len(admit(kv, again)) == 2
    assert [run.first for run in kv.take_runs()] == [2]


def test_blocks_missing_counts_what_a_request_does_not_hold_yet() -> None:
    kv = manager(16)
    chunked = request("chunked", list(range(5 * BLOCK)))
    kv.admit(chunked, [], 2 * BLOCK)
    assert kv.blocks_missing(chunked) == 3
    whole = request("whole", [7] * BLOCK)
    admit(kv, whole)
    assert kv.blocks_missing(whole) == 0


def test_the_last_token_is_always_computed() -> None:
    kv = manager(8)
    first = request("first", [1] * (2 * BLOCK))
    admit(kv, first)
    assert len(kv.find_prefix(request("again", [1] * (2 * BLOCK)))) == 1
    assert len(kv.find_prefix(request("longer", [1] * (2 * BLOCK + 1)))) == 2


def test_another_salt_finds_nothing() -> None:
    kv = manager(8)
    admit(kv, request("first", [1] * 40, options=RequestOptions(cache_salt="a")))
    assert kv.find_prefix(request("b", [1] * 40, options=RequestOptions(cache_salt="b"))) == []
    assert kv.find_prefix(request("none", [1] * 40)) == []
    assert len(kv.find_prefix(request("a", [1] * 40, options=RequestOptions(cache_salt="a")))) == 2


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    kv = manager(8)
    admit(kv, request("first", [1] * 40))
    assert kv.find_prefix(request("second", [1] * 40, prompt_logprobs=1)) == []
    whole = RequestOptions(skip_reading_prefix_cache=True)
    assert kv.find_prefix(request("third", [1] * 40, options=whole)) == []


def test_caching_off_finds_and_counts_nothing() -> None:
    kv = manager(8, caching=False)
    admit(kv, request("first", [1] * 40))
    assert kv.find_prefix(request("second", [1] * 40)) == []
    assert kv.prefix_queries == kv.prefix_hits == 0


def test_nothing_is_hashed_in_vain() -> None:
    """Without caching, or for a tier that keeps nothing."""
    tiers = TierConfig(num_swap_slots=4, num_offload_slots=4)
    for caching in (False, True):
        kv = KVCacheManager(CacheConfig(BLOCK, 8, caching, tiers=tiers))
        asked = request("asked", [1] * 40)
        assert kv.find_stored(asked, []) is None
        if not caching:
            admit(kv, asked)
        assert asked.block_hashes == []


def test_the_least_recently_used_prefix_goes_first() -> None:
    kv = manager(4)
    old, new = request("old", [1] * 33), request("new", [2] * 17)
    admit(kv, old)
    kv.free(old)
    again = request("old", [1] * 33)
    assert len(kv.find_prefix(again)) == 2
    admit(kv, new)  # takes the two blocks that hold no prefix, or the oldest
    assert len(kv.find_prefix(again)) == 2
    kv.free(new)
    admit(kv, request("big", [3] * 17))
    # The tail of the oldest prefix went, its head stayed as long as it could.
    assert len(kv.find_prefix(again)) == 1


def test_discarded_blocks_are_never_found_again() -> None:
    kv = manager(8)
    first = request("first", [1] * 40)
    admit(kv, first)
    kv.discard(first)
    kv.free(first)
    assert kv.find_prefix(request("second", [1] * 40)) == []
    assert kv.pool.num_free == 8
    kv.check_integrity()


def test_hits_and_queries_are_counted_in_tokens() -> None:
    kv = manager(8)
    admit(kv, request("first", [1] * 40))
    admit(kv, request("second", [1] * 40))
    assert (kv.prefix_queries, kv.prefix_hits) == (80, 32)


@pytest.mark.parametrize("window", [None, 1, 2, 15, 16, 17, 40])
def test_the_first_block_that_a_token_attends_to(window: int | None) -> None:
    kv = KVCacheManager(CacheConfig(BLOCK, 8, sliding_window=window))
    for position in range(100):
        attended = [p for p in range(position + 1) if window is None or p > position - window]
        assert kv.first_needed(position) == attended[0] // BLOCK


@pytest.mark.parametrize("window", [None, 1, 2, 16, 17, 40])
@pytest.mark.parametrize("chunk", [1, 2, 15, 16, 17, 50])
def test_the_most_blocks_that_a_request_holds(window: int | None, chunk: int) -> None:
    """Wherever its chunks begin: from the first one attended to, to that of the last token."""
    for num_tokens in (200, 201, 215):
        held = 0
        for start in range(num_tokens):
            first = 0 if window is None else max(0, start - window + 1)
            last = min(start + chunk, num_tokens) - 1
            held = max(held, last // BLOCK - first // BLOCK + 1)
        most = most_blocks(num_tokens, BLOCK, window, chunk)
        assert held <= most <= min(held + (window is not None), -(-num_tokens // BLOCK))


def tiered(num_blocks: int, slots: int, files: ModelledFiles | None = None) -> KVCacheManager:
    tiers = TierConfig(num_swap_slots=4, num_offload_slots=slots)
    cache = CacheConfig(BLOCK, num_blocks, tiers=tiers)
    return KVCacheManager(cache, lower=[files] if files else [])


def test_only_the_blocks_of_computed_tokens_are_swapped_out() -> None:
    """A request may hold blocks for tokens that no step has computed yet."""
    kv = tiered(num_blocks=8, slots=0)
    ahead = request("ahead", list(range(6 * BLOCK)))
    admit(kv, ahead)
    assert kv.can_swap_out(ahead, 4 * BLOCK)
    assert not kv.can_swap_out(ahead, 4 * BLOCK + 1)
    kv.swap_out(ahead, 3 * BLOCK + 1)
    stored = kv.find_stored(ahead, [])
    assert stored.blocks == [*kv.table("ahead")[:3], TO_LOAD]


@pytest.mark.parametrize(
    ("num_tokens", "window", "first", "count"),
    [(64, BLOCK, 3, 1), (64, BLOCK + 2, 2, 2), (49, None, 0, 4), (48, None, 0, 3)],
)
def test_which_blocks_are_swapped_out(
    num_tokens: int, window: int | None, first: int, count: int
) -> None:
    """Those of computed tokens that the next one attends to."""
    cache = CacheConfig(BLOCK, 8, sliding_window=window, tiers=TierConfig(num_swap_slots=4))
    kv = KVCacheManager(cache)
    behind = request("behind", list(range(5 * BLOCK)))
    admit(kv, behind)
    table = kv.table("behind")
    kv.swap_out(behind, num_tokens)
    swapped = kv.tier.swapped("behind")
    assert (swapped.first, len(swapped.slots), swapped.num_tokens) == (first, count, num_tokens)
    copies = kv.tier.take_copies()
    assert [store.block for store in copies.stores] == table[first : first + count]


@pytest.mark.parametrize("reset", [False, True])
def test_swapped_blocks_that_are_still_cached_are_shared(reset: bool) -> None:
    """Of 3 blocks and a half, the first and the last but one have a new use."""
    kv = tiered(num_blocks=8, slots=0)
    assert kv.tier is not None
    back = request("back", list(range(3 * BLOCK + 8)))
    admit(kv, back)
    table = kv.table("back")
    kv.swap_out(back, 3 * BLOCK + 8)
    kv.free(back)
    kv.forget(Entered([table[0], table[2]], []))
    if reset:
        kv.reset_prefix_cache()
    stored = kv.find_stored(back, [])
    shared = TO_LOAD if reset else table[1]
    assert stored.blocks == [TO_LOAD, shared, TO_LOAD, TO_LOAD]
    assert (stored.num_tokens, stored.keys, stored.private) == (3 * BLOCK + 8, [], reset)
    blocks, loads = kv.admit_stored(back, stored, 5 * BLOCK)
    assert len(blocks) == len(set(blocks)) == 5
    assert [load.block for load in loads] == [b for b in blocks[:4] if b != table[1] or reset]
    assert kv.enter(back, 3 * BLOCK) == (NEVER if reset else 3) * BLOCK
    assert len(kv.find_prefix(request("same", list(range(3 * BLOCK + 8))))) == (0 if reset else 3)
    kv.check_integrity()


def test_stored_blocks_within_the_window_are_loaded() -> None:
    tiers = TierConfig(num_offload_slots=8)
    kv = KVCacheManager(CacheConfig(BLOCK, 8, sliding_window=2 * BLOCK, tiers=tiers))
    tokens = list(range(6 * BLOCK))
    first = request("first", tokens)
    admit(kv, first)
    table = kv.table("first")
    kv.tier.offload(table[5], first.block_hashes[5])
    kv.forget(Entered([table[1], table[5]], []))
    again = request("again", [*tokens, 1])
    stored = kv.find_stored(again, kv.find_prefix(again))
    assert stored.blocks == [NO_BLOCK] * 4 + [table[4], TO_LOAD]
    assert stored.keys == first.block_hashes[5:]


def test_what_the_host_tier_adds_to_a_prefix() -> None:
    files = ModelledFiles(8)
    kv = tiered(num_blocks=5, slots=2, files=files)
    assert kv.tier is not None
    tokens = list(range(4 * BLOCK))
    first = request("first", tokens)
    admit(kv, first)
    kv.free(first)
    others = [request(f"other{i}", [100 + i] * BLOCK) for i in range(4)]
    for other in others:  # all but the first evict a block, the last one first
        admit(kv, other)
        kv.tier.take_copies()
    for other in others:
        kv.free(other)
    files.write(first.block_hashes[3], np.zeros(0, np.uint64))
    again = request("again", [*tokens, 1])
    prefix = kv.find_prefix(again)
    stored = kv.find_stored(again, prefix)
    assert stored.blocks == [*prefix, TO_LOAD, TO_LOAD, TO_LOAD]
    assert stored.num_tokens == 4 * BLOCK
    assert stored.keys == first.block_hashes[1:]
    assert stored.num_loads == 3
    assert stored.num_from_files == 1  # the one that was evicted first
    assert not stored.arriving
    assert not stored.private
    whole = request("whole", [*tokens, 1], prompt_logprobs=1)
    assert kv.find_stored(whole, []) is None
    queries = kv.prefix_queries
    table, loads = kv.admit_stored(again, stored, again.num_tokens)
    assert (kv.prefix_queries - queries, kv.prefix_hits) == (again.num_tokens, BLOCK)
    assert files.used == {first.block_hashes[0]}  # reading the others marks them
    assert table[:1] == prefix
    assert len(set(table)) == 5
    assert [load.block for load in loads] == table[1:4]
    assert [load.key for load in loads] == stored.keys
    assert [load.slot == ON_DISK for load in loads] == [False, False, True]
    waiting = request("waiting", [*tokens, 2])
    found = kv.find_stored(waiting, kv.find_prefix(waiting))
    assert found.arriving
    assert not kv.end_loads(loads, {loads[1].block})
    found = kv.find_stored(waiting, kv.find_prefix(waiting))
    assert not found.arriving
    assert found.keys == stored.keys[:1]
    kv.check_integrity()


def test_files_of_blocks_that_a_request_finds_in_the_cache_are_marked_as_used() -> None:
    files = ModelledFiles(8)
    kv = tiered(num_blocks=8, slots=0, files=files)
    first = request("first", [1] * 3 * BLOCK)
    admit(kv, first)
    admit(kv, request("second", [*[1] * 2 * BLOCK, 2]))
    assert files.used == set(first.block_hashes[:2])


def test_a_single_block_in_the_host_tier_is_found() -> None:
    kv = tiered(num_blocks=2, slots=8)
    first, other = request("first", [1] * BLOCK), request("other", [2] * 2 * BLOCK)
    admit(kv, first)
    kv.free(first)
    admit(kv, other)
    again = request("again", [1] * (BLOCK + 1))
    stored = kv.find_stored(again, kv.find_prefix(again))
    assert stored.keys == first.block_hashes


def test_a_block_in_the_cache_is_not_loaded() -> None:
    """Behind one that was evicted, too, and where the host tier has a copy."""
    kv = tiered(num_blocks=5, slots=8)
    assert kv.tier is not None
    tokens = list(range(3 * BLOCK))
    first = request("first", tokens)
    admit(kv, first)
    for key in first.block_hashes:
        assert kv.tier.offload(0, key) is None
    again = request("again", [*tokens, 1])
    stored = kv.find_stored(again, kv.find_prefix(again)[:1])
    assert stored is None
