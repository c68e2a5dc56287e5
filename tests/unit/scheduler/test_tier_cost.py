"""Copies or computation: as predicted at first, then as copies were seen to be."""

from __future__ import annotations

import pytest

from quire.core.batch import ON_DISK, BlockCopies, BlockLoad, BlockStore
from quire.core.cost import RooflineCost
from quire.scheduler.tier_cost import MEMORY, STALE, TierCost

BLOCK = 16


def new(flops: float, bandwidth: float = 1e10) -> TierCost:
    """Of a token of 1 MB and 1 GFLOP: a block is copied in 1.6 ms."""
    cost = RooflineCost(
        weight_bytes=1e8,
        kv_bytes_per_token=1e6,
        flops_per_token=1e9,
        flops_per_row=1e8,
        flops_per_pair=1e5,
        bytes_per_second=1e12,
        flops_per_second=flops,
        attention_flops_per_second=flops,
        copy_bytes_per_second=bandwidth,
    )
    return TierCost(cost, BLOCK)


def copies(stores: int = 0, loads: int = 0, files: int = 0) -> BlockCopies:
    slots = [*range(loads), *[ON_DISK] * files]
    return BlockCopies(
        [],
        [],
        [BlockStore(i, i, b"") for i in range(stores)],
        [BlockLoad(slot, i, b"") for i, slot in enumerate(slots)],
    )


def test_a_cpu_is_told_from_a_fast_device() -> None:
    slow, fast = new(1e12), new(1e15)
    assert slow.swap_pays(1000)
    assert slow.load_pays(1000, 500, 500)
    assert not fast.swap_pays(1000)
    assert not fast.load_pays(1000, 500, 500)


def test_slow_copies_change_the_mind() -> None:
    tiers = new(1e12)
    predicted = tiers.copy_seconds(10 * BLOCK)
    for _ in range(3):
        tiers.observe(copies(stores=6, loads=4), 200 * predicted)
    assert tiers.copy_seconds(10 * BLOCK) == pytest.approx(200 * predicted)
    assert not tiers.swap_pays(1000)
    assert not tiers.load_pays(1000, 500, 500)


def test_files_are_learned_apart_from_memory() -> None:
    tiers = new(1e12)
    predicted = tiers.copy_seconds(BLOCK)
    tiers.observe(copies(loads=2), 4 * predicted)  # twice as long as predicted
    tiers.observe(copies(loads=2, files=3), (4 + 3 * 1000) * predicted)
    assert tiers.copy_seconds(5 * BLOCK) == pytest.approx(10 * predicted)
    assert tiers.copy_seconds(5 * BLOCK, from_files=3 * BLOCK) == pytest.approx(3004 * predicted)
    assert tiers.load_pays(1000, 480, 480)
    assert not tiers.load_pays(1000, 480, 480, from_files=480)


def test_one_slow_step_counts_little_and_an_unknown_one_nothing() -> None:
    tiers = new(1e12)
    predicted = tiers.copy_seconds(BLOCK)
    for _ in range(MEMORY):
        tiers.observe(copies(loads=1), predicted)
    tiers.observe(copies(loads=1), 1000 * predicted)
    assert tiers.copy_seconds(BLOCK) <= 1.1 * predicted
    tiers.observe(copies(loads=1), 0.0)
    tiers.observe(copies(), 1.0)
    assert tiers.copy_seconds(BLOCK) <= 1.1 * predicted


def test_small_copies_tell_nothing_and_what_was_learned_is_forgotten_if_unused() -> None:
    tiers = new(1e12, bandwidth=1e12)
    predicted = tiers.copy_seconds(BLOCK)
    tiers.observe(copies(stores=2), 1.0)
    assert tiers.copy_seconds(BLOCK) == predicted
    tiers.observe(copies(stores=100), 1e6 * predicted)
    assert not any(tiers.swap_pays(1000) for _ in range(STALE))
    assert tiers.swap_pays(1000)
