"""Ranks that compute with torch: sums in the order of the ranks, and what a lost rank does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch

from quire.ops.device import CPU
from quire.ops.metadata import Heads, KVCache
from quire.ops.providers import load_ops
from quire.ops.torch_ops.rank_group import TorchRankGroup
from quire.parallel.shared_memory import anonymous_file, whole_pages

RANKS = 3
T = TypeVar("T")


@pytest.fixture(scope="module")
def groups() -> Iterator[list[TorchRankGroup]]:
    page = whole_pages(1)
    memory = anonymous_file(2 * page)
    with ThreadPoolExecutor(RANKS) as pool:
        yield [*pool.map(lambda rank: TorchRankGroup(memory, rank, RANKS, page), range(RANKS))]
    os.close(memory)


def on_all(groups: list[TorchRankGroup], work: Callable[[TorchRankGroup], T]) -> list[T]:
    with ThreadPoolExecutor(RANKS) as pool:
        return [*pool.map(work, groups)]


def test_sums_are_in_the_order_of_the_ranks(groups: list[TorchRankGroup]) -> None:
    parts = [torch.randn(50, 7) * 10.0 ** (3 * rank) for rank in range(RANKS)]
    found = on_all(groups, lambda group: group.all_reduce(parts[group.rank], torch.float32))
    expected = (parts[0] + parts[1]) + parts[2]
    assert not torch.equal(expected, parts[0] + (parts[1] + parts[2]))
    assert all(torch.equal(total, expected) for total in found)
    halves = on_all(groups, lambda group: group.all_reduce(parts[group.rank], torch.bfloat16))
    assert all(torch.equal(total, expected.bfloat16()) for total in halves)


def test_columns_and_rows_come_together_to_the_bit(groups: list[TorchRankGroup]) -> None:
    whole = torch.randn(5, 10)
    whole[0, :2], whole[1, 9] = -0.0, float("-inf")
    runs = [(0, 4), (4, 4), (8, 2)]
    table = torch.randn(10, 6).bfloat16()
    table[3] = -0.0
    ids = torch.tensor([9, 3, 0, 4, 3])

    def work(group: TorchRankGroup) -> tuple[torch.Tensor, torch.Tensor]:
        first, count = runs[group.rank]
        ops: Any = group.bound(load_ops("reference"))
        own = whole[:, first : first + count]
        rows = ops.vocab_embedding(ids, table[first : first + count], first, 10)
        return ops.all_gather(own, first, 10), rows

    for columns, rows in on_all(groups, work):
        assert torch.equal(columns.view(torch.int32), whole.view(torch.int32))
        assert torch.equal(rows.view(torch.int16), table[ids].view(torch.int16))


@pytest.mark.parametrize("kv_heads", [3, 1])
def test_norms_of_all_heads(groups: list[TorchRankGroup], kv_heads: int) -> None:
    """With one key-value head, all ranks have it, and it counts once."""
    heads, dim, tokens = 6, 8, 4
    q, k = torch.randn(tokens, heads * dim), torch.randn(tokens, kv_heads * dim)
    v = torch.randn(tokens, kv_heads * dim)
    weights = torch.rand(heads * dim), torch.rand(kv_heads * dim)
    slots = torch.arange(tokens)

    def cache(count: int) -> KVCache[Any]:
        return KVCache(torch.zeros(1, count, tokens, dim), torch.zeros(1, count, tokens, dim))

    def call(ops: Any, parts: list[torch.Tensor], kept: KVCache[Any], own: int) -> torch.Tensor:
        found: torch.Tensor = ops.rope_kv_write(
            torch.cat(parts, 1), slots, None, kept, slots,
            Heads(own, kept.k.shape[1], dim, *weights, eps=1e-6),
        )  # fmt: skip
        return found

    whole = cache(kv_heads)
    expected = call(load_ops("reference"), [q, k, v], whole, heads)

    def work(group: TorchRankGroup) -> tuple[torch.Tensor, torch.Tensor]:
        own = slice(group.rank * 2 * dim, (group.rank + 1) * 2 * dim)
        first = group.rank * kv_heads // RANKS * dim
        ops, kept = group.bound(load_ops("reference")), cache(1)
        mine = [q[:, own], k[:, first : first + dim], v[:, first : first + dim]]
        return call(ops, mine, kept, 2), kept.k

    for rank, (found, keys) in enumerate(on_all(groups, work)):
        torch.testing.assert_close(
            found, expected[:, 2 * rank : 2 * rank + 2], rtol=1e-6, atol=1e-6
        )
        head = rank * kv_heads // RANKS
        torch.testing.assert_close(keys[:, 0], whole.k[:, head], rtol=1e-6, atol=1e-6)


def test_ops_of_a_rank_leave_those_of_one_process(groups: list[TorchRankGroup]) -> None:
    alone = load_ops("reference", device=CPU)
    bound = groups[0].bound(alone)
    assert (bound.ranks, alone.ranks) == (RANKS, 1)
    assert bound.whole(None) is alone
    assert bound.capture is None


def test_who_waits_is_told_on_every_rank(groups: list[TorchRankGroup]) -> None:
    """Rank 1 comes when the others have, so it waits for nobody."""
    before, came = groups[0].waited(), groups[0]._page[: 2 * 64].reshape(2, 64)
    old, there = came.copy(), threading.Barrier(RANKS)

    def work(group: TorchRankGroup) -> list[float]:
        while group.rank == 1 and not (came != old)[:, [0, 2]].any(0).all():
            time.sleep(1e-3)
        group.all_reduce(torch.ones(1, 8), torch.float32)
        there.wait()
        return group.waited()

    for waited in on_all(groups, work):
        first, late, third = (now - then for now, then in zip(waited, before, strict=True))
        assert min(first, third) > late == 0.0


def test_a_failed_step_ends_the_wait_of_others_and_the_next_step_connects_anew(
    groups: list[TorchRankGroup],
) -> None:
    def work(group: TorchRankGroup) -> str:
        group.begin(5)
        why = ""
        try:
            if group.rank == 1:
                raise RuntimeError("mine")
            group.all_reduce(torch.ones(1, 1), torch.float32)
        except RuntimeError as error:
            why = str(error)
        group.fail()
        return why

    whys = on_all(groups, work)
    assert whys[1] == "mine"
    assert whys[0]
    assert whys[2]
    with pytest.raises(RuntimeError, match="lost a rank"):
        groups[0].all_reduce(torch.ones(1, 1), torch.float32)

    def again(group: TorchRankGroup) -> float:
        group.begin(6)
        return group.all_reduce(torch.ones(1, 1), torch.float32).item()

    assert on_all(groups, again) == [3.0] * RANKS
