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
    rng = np.random.default_rng(0)
    chains = [[b"%d.%d" % (chain, i) for i in range(12)] for chain in range(4)]
    caches, held = CacheMap(REPLICAS), [set[bytes]() for _ in range(REPLICAS)]
    for _ in range(300):
        replica, chain = int(rng.integers(REPLICAS)), chains[int(rng.integers(4))]
        begin, end = sorted(rng.integers(0, 13, 2).tolist())
        blocks, emptied = chain[begin:end], bool(rng.random() < 0.02)
        entered, left = (blocks, []) if rng.random() < 0.6 else ([], blocks)
        caches.report(replica, BlockChanges(list(entered), list(left), emptied))
        if emptied:
            held[replica].clear()
        held[replica].difference_update(left)
        held[replica].update(entered)
        for hashes in chains:
            found = [0] * REPLICAS
            depths = caches.depths(hashes)
            assert depths == sorted(depths, key=lambda d: -d.num_blocks)
            for mask, num_blocks in depths:
                for index in range(REPLICAS):
                    if mask >> index & 1:
                        found[index] = num_blocks
            assert found == depth_by_search(held, hashes)
            assert sum(mask for mask, _ in depths) == caches.everyone


def test_expected_blocks_count_until_the_request_ends() -> None:
    caches = CacheMap(2)
    caches.expect(1, [b"a", b"b"])
    caches.expect(1, [b"a"])
    assert caches.depths([b"a", b"b"])[0] == (0b10, 2)
    caches.unexpect(1, [b"a", b"b"])
    assert caches.depths([b"a", b"b"])[0] == (0b10, 1)
    caches.report(1, BlockChanges([b"a"], []))
    caches.unexpect(1, [b"a"])
    assert caches.depths([b"a"])[0] == (0b10, 1)
    caches.forget(1)
    assert caches.depths([b"a"]) == [(0b11, 0)]
