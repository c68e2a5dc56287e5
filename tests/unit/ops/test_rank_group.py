"""What ranks tell each other: the same bits on all, and nobody waits for one that does not come."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import torch

from quire import _native
from quire.ops.native.gemm import WeightKind
from quire.ops.native.kernels import native_kernels
from quire.ops.rank_memory import rank_group_bytes
from quire.parallel.shared_memory import anonymous_file
from tests.golden import ranks as threads_of_ranks
from tests.native import PackedLinear, RankGroup, view

KERNELS = native_kernels()


def run_ranks(ranks: int, work: Callable[[RankGroup], Any]) -> list[Any]:
    return threads_of_ranks.run_ranks(ranks, lambda group: work(RankGroup.of(group)))


KINDS: dict[torch.dtype, WeightKind] = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"
}  # fmt: skip


def reduce(group: RankGroup, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return group.all_reduce(KERNELS, _native.Pool(1), x, dtype)


def parts(ranks: int, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(ranks)
    return [torch.randn(shape, generator=generator) for _ in range(ranks)]


def in_order(given: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(given[0])
    for part in given:
        total = total + part
    return total


@pytest.mark.matrix
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 37), (0, 16), (9, 1024), (70, 4100)])
def test_sums_are_in_the_order_of_the_ranks(
    ranks: int, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    """The largest are several chunks of several tasks."""
    given = parts(ranks, *shape)
    sums = run_ranks(ranks, lambda group: reduce(group, given[group.rank], dtype))
    for result in sums:
        assert torch.equal(result, in_order(given).to(dtype))


def test_ranks_meet_at_one_address() -> None:
    """Elsewhere each maps the memory for itself, where ThreadSanitizer cannot see a race."""
    ranks, rows, cols = 3, 40, 4100
    memory = torch.zeros(rank_group_bytes(ranks), dtype=torch.uint8)
    groups = [_native.RankGroup(memory.data_ptr(), rank, ranks) for rank in range(ranks)]
    given = parts(ranks, rows, cols)

    def work(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        pool, x = _native.Pool(2), given[rank]
        total, whole = torch.empty(rows, cols), torch.empty(rows, ranks * cols)
        for step in range(1, 4):
            groups[rank].begin(step)
            _native.all_reduce(KERNELS, pool, groups[rank], view(total), view(x))
            _native.all_gather(pool, groups[rank], view(whole), view(x), rank * cols)
        return total, whole

    with ThreadPoolExecutor(ranks) as threads:
        for total, whole in threads.map(work, range(ranks)):
            assert torch.equal(total, in_order(given))
            assert torch.equal(whole, torch.cat(given, 1))


def runs(count: int, ranks: int) -> list[tuple[int, int]]:
    """Each rank's part of `count`: first, and how many."""
    ends = [count * rank // ranks for rank in range(ranks + 1)]
    return [(begin, end - begin) for begin, end in pairwise(ends)]


@pytest.mark.matrix
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 5), (0, 16), (7, 99), (70, 4100), (2, 700_001)])
def test_columns_are_brought_together(
    ranks: int, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    """The largest are several chunks, of several rows or of parts of one."""
    whole = parts(1, *shape)[0].to(dtype)
    dealt = runs(shape[1], ranks)

    def work(group: RankGroup) -> torch.Tensor:
        first, count = dealt[group.rank]
        own = whole[:, first : first + count].contiguous()
        return group.all_gather(_native.Pool(2), own, first, shape[1])

    assert all(torch.equal(found, whole) for found in run_ranks(ranks, work))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_looked_up_where_they_are(ranks: int, dtype: torch.dtype, packed: bool) -> None:
    table = parts(1, 100, 72)[0].to(dtype)
    ids = torch.randint(100, (300,), generator=torch.Generator().manual_seed(1))
    ids[:2] = torch.tensor([0, 99])
    dealt = runs(100, ranks)

    def work(group: RankGroup) -> torch.Tensor:
        pool = _native.Pool(2)
        first, count = dealt[group.rank]
        own = table[first : first + count]
        held = PackedLinear(KERNELS, pool, [own], kind=KINDS[dtype]) if packed else own
        return group.vocab_embedding(pool, ids, held, first, 100)

    assert all(torch.equal(found, table[ids]) for found in run_ranks(ranks, work))


def test_many_sums_in_many_steps() -> None:
    """Slots are used again, and a rank that is ahead waits."""
    given = [parts(3, 4, 64) for _ in range(20)]

    def work(group: RankGroup) -> list[torch.Tensor]:
        found = []
        for step in range(1, 6):
            group.begin(step)
            found += [reduce(group, wanted[group.rank]) for wanted in given]
            meet.wait()  # as the executor does, which hears from all before the next step
        return found

    meet = threading.Barrier(3)
    for results in zip(*run_ranks(3, work), strict=True):
        assert all(torch.equal(results[0], result) for result in results)


@pytest.fixture
def pair() -> Iterator[tuple[RankGroup, RankGroup]]:
    memory = anonymous_file(rank_group_bytes(2))
    yield RankGroup(memory, 0, 2), RankGroup(memory, 1, 2)
    os.close(memory)


def test_a_rank_that_fails_is_not_waited_for(pair: tuple[RankGroup, RankGroup]) -> None:
    x = torch.ones(1, 8)
    for group in pair:
        group.begin(1)
    pair[1].fail()
    with pytest.raises(RuntimeError, match="rank 1 has failed in this step"):
        reduce(pair[0], x)


def test_after_a_failed_step_the_next_one_counts(pair: tuple[RankGroup, RankGroup]) -> None:
    """Though one rank had come further than the other."""
    x = torch.ones(1, 8)
    pair[0].begin(1)
    pair[1].begin(1)
    pair[1].fail()
    with pytest.raises(RuntimeError):
        reduce(pair[0], x)
    sums: list[torch.Tensor] = []
    for group in pair:
        group.begin(2)
    other = threading.Thread(target=lambda: sums.append(reduce(pair[1], 2 * x)))
    other.start()
    sums.append(reduce(pair[0], x))
    other.join()
    assert all(torch.equal(total, 3 * x) for total in sums)


def test_who_waits_for_a_rank_that_is_gone_hears_of_it(pair: tuple[RankGroup, RankGroup]) -> None:
    raised: list[RuntimeError] = []

    def wait() -> None:
        try:
            reduce(pair[0], torch.ones(1, 8))
        except RuntimeError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    pair[1].lose()
    waiting.join(60)
    assert [str(error) for error in raised] == ["a rank is lost"]


def test_what_cannot_be_summed(pair: tuple[RankGroup, RankGroup]) -> None:
    for x in (torch.ones(8), torch.ones(2, 8).t(), torch.ones(2, 8, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="wanted a contiguous float32"):
            reduce(pair[0], x)
    pool = _native.Pool(1)
    with pytest.raises(ValueError, match="wanted contiguous floats"):
        pair[0].all_gather(pool, torch.ones(2, 8).t(), 0, 8)
    with pytest.raises(ValueError, match=r"columns \[4, 12\) are not among 10"):
        pair[0].all_gather(pool, torch.ones(2, 8), 4, 10)
    with pytest.raises(IndexError, match="token id 10 of row 0"):
        pair[0].vocab_embedding(pool, torch.tensor([10]), torch.ones(5, 4), 0, 10)
    with pytest.raises(ValueError, match="no rank 2 of 2"):
        _native.RankGroup(0, 2, 2)


def test_who_waits_is_told_on_every_rank() -> None:
    """Rank 1 comes long after the others are about to wait for it."""
    there = threading.Barrier(3)

    def work(group: RankGroup) -> list[float]:
        x = torch.ones(1, 8)
        there.wait()
        if group.rank == 1:
            time.sleep(1.0)
        reduce(group, x)
        reduce(group, x)  # by now what the others have waited for is written
        return group.waited()

    for waited in run_ranks(3, work):
        assert min(waited[0], waited[2]) > 0.0
        assert waited[1] >= 0.0
