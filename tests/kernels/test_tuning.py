"""What is tuned decides speed alone: the same bits with any values, on every instruction set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from quire import _native
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.native.gemm import WeightKind
from quire.ops.native.kernels import Kernels, native_kernels
from quire.ops.tuning import AttentionTuning, GemmTuning
from tests.kernels.fused_common import draw, new_generator, pick
from tests.native import PackedLinear, paged_attention, pool_of

ROWS = (1, 2, 3, 7, 33, 120)
RULES: AttentionRules[Any] = AttentionRules(0.125)


def any_tuning(generator: torch.Generator) -> GemmTuning:
    def one_of(*values: int) -> int:
        return values[pick(generator, 0, len(values) - 1)]

    return GemmTuning(
        pass_rows=one_of(1, 2, 3, 5, 1000),
        chunk_bytes=one_of(1, 4096, 1 << 30),
        group_bytes=one_of(1, 1 << 14, 1 << 30),
        thread_tasks=one_of(1, 3, 1024),
        ahead_bytes=one_of(-1, 64, 1 << 20),
        vector_rows=one_of(-1, 1, 50),
    )


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "s8", "s8_a16", "u4"])
def test_products(kernels: Kernels, kind: WeightKind) -> None:
    generator = new_generator()
    weight = draw(generator, torch.bfloat16, 333, 200)
    plain, tuned = (
        PackedLinear(kernels, pool_of(2), weight, kind=kind, group=64, epilogue="gelu")
        for _ in range(2)
    )
    x = draw(generator, torch.bfloat16, max(ROWS), 200)
    for _ in range(6):
        tuned.tune({1: any_tuning(generator), 40: any_tuning(generator)})
        for rows in ROWS:
            assert torch.equal(tuned.forward(x[:rows]), plain.forward(x[:rows]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_attention(kernels: Kernels, dtype: torch.dtype) -> None:
    generator = new_generator()
    q, cache, meta = batch(generator, dtype)

    def attended(tuning: AttentionTuning) -> Tensor:
        return paged_attention(kernels, pool_of(2), q, cache, meta, RULES, tuning=tuning)

    expected = attended(AttentionTuning())
    for thread_tasks in (1, 2, 30, 1024):
        for tall_rows, ahead_bytes in ((1, 0), (5, 64), (1000, 1 << 20)):
            tuning = AttentionTuning(thread_tasks, tall_rows, ahead_bytes)
            assert torch.equal(attended(tuning), expected)


def batch(
    generator: torch.Generator, dtype: torch.dtype
) -> tuple[Tensor, KVCache, AttentionMetadata]:
    """A prompt's last 20 tokens of 60, and one token each of sequences of 1,500 and 9."""
    new, lengths, size = [20, 1, 1], [60, 1500, 9], 16
    blocks = [-(-n // size) for n in lengths]
    shape = (sum(blocks), 2, size, 64)
    if dtype == torch.int8:
        k, v = (draw(generator, torch.float32, *shape).mul(40).char() for _ in range(2))
        scales = [draw(generator, torch.bfloat16, *shape[:3]).abs() / 40 for _ in range(2)]
        cache = KVCache(k, v, *scales)
    else:
        cache = KVCache(*(draw(generator, dtype, *shape) for _ in range(2)))
    tables = torch.zeros(3, max(blocks), dtype=torch.int32)
    order = torch.randperm(shape[0], generator=generator).int()
    for row, some in enumerate(order.split(blocks)):
        tables[row, : len(some)] = some
    starts = torch.tensor([0, *new]).cumsum(0).int()
    meta = AttentionMetadata(
        query_start_loc=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.empty(0, dtype=torch.int64),
        num_seqs=3,
        block_size=size,
    )
    queries = torch.float32 if dtype == torch.float32 else torch.bfloat16
    return draw(generator, queries, sum(new), 8, 64), cache, meta


def test_what_no_kernel_can_heed_is_refused() -> None:
    kernels = native_kernels()
    linear = PackedLinear(kernels, pool_of(2), torch.ones(32, 32), kind="f32")
    for values in ((-1, 0, 0, 0, 0, 0), (0, 0, 0, 2048, 0, 0), (0, 0, 0, 0, -2, 0)):
        with pytest.raises(ValueError, match="no such tuning"):
            linear.tune({1: GemmTuning(*values)})
    weight = linear.stored.weight
    with pytest.raises(ValueError, match="ascend"):
        weight.tune([(2, (0,) * 6), (2, (0,) * 6)])
    q, cache, meta = batch(new_generator(), torch.float32)
    tuning = AttentionTuning(thread_tasks=-1)
    with pytest.raises(ValueError, match="no such tuning"):
        paged_attention(_native.table("portable"), pool_of(2), q, cache, meta, RULES, tuning=tuning)
