"""The map of all caches against plain sets, under random reports."""

from __future__ import annotations

import numpy as np

from quire.core.messages import BlockChanges
from quire.routing.cache_map import CacheMap

REPLICAS = 5


def depth_by_search(held: list[set[bytes]], hashes: list[bytes]) -> list[int]:
    return [
        next((i for i, block in enumerate(hashes) if block not in blocks), len(hashes))
        for blocks in held
    ]


def test_depths_are_those_of_a_search_through_each_cache() -> None:
    """Prefixes enter from their first block and leave from their last, as in a block pool."""
    rng = np.random.default_rng(0)
    chains = [[b"%d.%d" % (chain, i) for i in range(12)] for chain in range(4)]
    caches, held = CacheMap(REPLICAS), [set[bytes]() for _ in range(REPLICAS)]
    for _ in range(300):
        replica, chain = int(rng.integers(REPLICAS)), chains[int(rng.integers(4))]
        at, emptied = int(rng.integers(13)), bool(rng.random() < 0.02)
        entered, left = (chain[:at], []) if rng.random() < 0.6 else ([], chain[at:])
        caches.report(replica, BlockChanges(list(entered), list(left), emptied))
        if emptied:
            held[replica].clear()
        held[replica].difference_update(left)
        held[replica].update(entered)
        for hashes in chains:
            expected = depth_by_search(held, hashes)
            found = [caches.num_blocks(hashes, 1 << i) for i in range(REPLICAS)]
            assert found == expected
            assert caches.num_blocks(hashes, 0b10110) == max(expected[i] for i in (1, 2, 4))
            assert caches.num_blocks(hashes, 0b1, 5) == min(expected[0], 5)


def test_expected_blocks_count_until_the_request_ends() -> None:
    caches = CacheMap(2)
    caches.expect(1, [b"a", b"b"])
    caches.expect(1, [b"a"])
    assert caches.num_blocks([b"a", b"b"], 0b10) == 2
    assert caches.num_blocks([b"a", b"b"], 0b01) == 0
    caches.unexpect(1, [b"a", b"b"])
    assert caches.num_blocks([b"a", b"b"], 0b11) == 1
    caches.report(1, BlockChanges([b"a"], []))
    caches.unexpect(1, [b"a"])
    assert caches.holders(b"a") == 0b10
    caches.forget(1)
    assert caches.holders(b"a") == 0
