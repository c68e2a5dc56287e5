"""Copies or computation: as predicted at first, then as copies were seen to be."""

from __future__ import annotations

import pytest

from quire.core.batch import BlockCopies, BlockLoad, BlockSave, BlockStore
from quire.core.cost import RooflineCost
from quire.scheduler.tier_cost import LEAST, MEMORY, OUTLIER, STALE, TierCost

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
    return TierCost(cost, BLOCK, 0)


def copies(stores: int = 0, loads: int = 0) -> BlockCopies:
    return BlockCopies(
        [],
        [],
        [BlockStore(i, i, b"") for i in range(stores)],
        [BlockLoad(i, i, b"") for i in range(loads)],
    )


def observe(tiers: TierCost, loads: int, files: int, seconds: float) -> None:
    """Loads of either kind."""
    if files:
        tiers.observe_reads(files, seconds)
    else:
        tiers.observe(copies(loads=loads), seconds)


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
    tiers.observe_reads(3, 3 * 1000 * predicted)
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


class Exact:
    """Seconds that tell every argument; a token is copied in `copy`."""

    def __init__(self, copy: float) -> None:
        self.copy = copy

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        return num_tokens + 1e3 * num_seqs + 1e6 * context_tokens + 2.0**36 * attended

    def copy_seconds(self, num_tokens: int) -> float:
        return self.copy * num_tokens

    def computing(self, start: int, end: int) -> float:
        """Of the tokens at `start` to `end` - 1, of one request, each attending to those before."""
        return self.seconds(
            end - start, 1, end, sum(position + 1 for position in range(start, end))
        )


@pytest.mark.parametrize("num_tokens", [1, 2, 17, 64])
def test_a_swap_pays_if_two_copies_are_faster_than_computing(num_tokens: int) -> None:
    again = Exact(0.0).computing(0, num_tokens)
    even = again / (2 * num_tokens)
    assert not TierCost(Exact(even), BLOCK, 0).swap_pays(num_tokens)
    assert TierCost(Exact(even * (1 - 1e-9)), BLOCK, 0).swap_pays(num_tokens)


@pytest.mark.parametrize(("num_tokens", "num_saved"), [(16, 16), (64, 16), (64, 48), (5, 1)])
@pytest.mark.parametrize("num_loaded", [1, 32])
def test_a_load_pays_if_one_copy_is_faster(
    num_tokens: int, num_saved: int, num_loaded: int
) -> None:
    again = Exact(0.0).computing(num_tokens - num_saved, num_tokens)
    for from_files in {0, 1, num_loaded}:
        asked = num_tokens, num_saved, num_loaded, from_files
        even = again / num_loaded
        assert not TierCost(Exact(even * (1 + 1e-9)), BLOCK, 0).load_pays(*asked)
        assert TierCost(Exact(even * (1 - 1e-9)), BLOCK, 0).load_pays(*asked)
    assert not TierCost(Exact(again), BLOCK, 0).load_pays(num_tokens, num_saved, 1)


def test_a_state_takes_as_long_as_its_tokens() -> None:
    again = Exact(0.0).computing(0, 64)
    for copy, pays in ((again / 96 * (1 + 1e-9), False), (again / 96 * (1 - 1e-9), True)):
        tiers = TierCost(Exact(copy), BLOCK, 32)
        assert tiers.load_pays(64, 64, 64, with_state=True) == pays
        assert tiers.load_pays(64, 64, 64)


def test_copies_that_take_a_millisecond_teach_and_shorter_ones_do_not() -> None:
    for blocks, files in ((1, 0), (0, 1)):
        tiers = TierCost(Exact(LEAST / BLOCK), BLOCK, 0)
        observe(tiers, blocks, files, 2 * LEAST)
        assert tiers.copy_seconds(BLOCK, files * BLOCK) == 2 * LEAST
        tiers = TierCost(Exact(0.99 * LEAST / BLOCK), BLOCK, 0)
        observe(tiers, blocks, files, 2 * LEAST)
        assert tiers.copy_seconds(BLOCK, files * BLOCK) == 0.99 * LEAST


def test_copies_of_every_kind_count_and_reads_apart() -> None:
    tiers = TierCost(Exact(1.0), BLOCK, 0)
    many = copies(stores=2, loads=3)
    many.saves.extend([BlockSave(0, b""), BlockSave(1, b"")])
    tiers.observe(many, 7 * BLOCK * 3.0)
    assert tiers.copy_seconds(1) == 3.0
    assert tiers.copy_seconds(1, from_files=1) == 1.0
    tiers.observe_reads(4, 4 * 5.0 * BLOCK)
    assert tiers.copy_seconds(3, from_files=1) == 2 * 3.0 + 5.0


def test_copies_are_averaged_and_outliers_are_cut() -> None:
    tiers, average = TierCost(Exact(1.0), BLOCK, 0), 0.0
    for i, ratio in enumerate([1.0, 1.5, 1.25, 1.75] * 6):
        tiers.observe(copies(loads=1), ratio * BLOCK)
        average += (ratio - average) / min(i + 1, MEMORY)
        assert tiers.copy_seconds(1) == pytest.approx(average, rel=1e-12)
    tiers.observe(copies(loads=1), 0.0)  # not known
    for ratio, seen in ((1e9, OUTLIER), (1e-9, 1 / OUTLIER)):
        assert tiers.copy_seconds(1) == pytest.approx(average, rel=1e-12)
        before = tiers.copy_seconds(1)
        tiers.observe(copies(loads=1), ratio * BLOCK)
        average = before + (seen * before - before) / MEMORY
    assert tiers.copy_seconds(1) == pytest.approx(average, rel=1e-12)


@pytest.mark.parametrize("files", [0, 1])
def test_only_copies_left_undone_age_what_was_learned(files: int) -> None:
    tiers = TierCost(Exact(1.0), BLOCK, 0)
    observe(tiers, 1 - files, files, 1e12 * BLOCK)

    def pays(num_tokens: int) -> bool:
        return tiers.load_pays(num_tokens, num_tokens, num_tokens, files * num_tokens)

    assert tiers.load_pays(1, 1, 1) == bool(files)  # without files, if nothing else is said

    def learned() -> bool:
        return tiers.copy_seconds(1, files) > 1.0

    for _ in range(STALE - 2):
        assert not pays(1)
    assert learned()
    assert tiers.load_pays(64, 64, 0)  # a decision for copying: nothing is forgotten yet
    for _ in range(STALE - 1):
        assert not pays(1)
    assert learned()
    observe(tiers, 1 - files, files, 1e12 * BLOCK)  # nor after a copy
    for _ in range(STALE - 1):
        assert not pays(1)
    assert learned()
    assert not pays(1)
    assert not learned()
    observe(tiers, 1 - files, files, 7.0 * BLOCK)
    assert tiers.copy_seconds(1, files) == 7.0  # the first of a new average
