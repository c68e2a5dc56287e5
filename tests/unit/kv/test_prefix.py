"""Prefixes of models with recurrent layers, and of those with sliding windows."""

from __future__ import annotations

from quire.core.config import CacheConfig, StateConfig
from quire.kv.manager import KVCacheManager
from tests.unit.kv.test_manager import BLOCK, admit, request


def recurrent() -> KVCacheManager:
    """Return a manager that takes a snapshot after each block."""
    states = StateConfig(num_slots=16, per_request=2, spacing=BLOCK)
    return KVCacheManager(CacheConfig(BLOCK, 16, states=states))


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
    assert kv.states is not None
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
