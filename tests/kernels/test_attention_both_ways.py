"""Attention to later tokens as well, to all or to those nearby: native and in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from quire import _native
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.torch_ops import paged_attention
from tests.isas import ISAS
from tests.native import paged_attention as native_attention

LENGTHS = (1, 5, 16, 70, 129, 300, 1100)
HEADS, KV_HEADS, BLOCK = 4, 2, 16
WINDOWS = (None, 9, 200)
"""Tokens less than so far away are seen."""
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
Attend = Callable[[Tensor, KVCache, AttentionMetadata], Tensor]


class Texts:
    """Sequences whose keys and values lie in blocks of their own; NaN lies everywhere else.

    With `parts` each second one of a causal model is seen whole; a window bounds what lies behind.
    """

    def __init__(
        self, dtype: torch.dtype, dim: int, window: int | None = None, *, parts: bool = False
    ) -> None:
        generator = torch.Generator().manual_seed(dim)
        blocks = [-(-n // BLOCK) for n in LENGTHS]
        order = torch.randperm(sum(blocks) + 3, generator=generator).tolist()
        shape = (len(order), KV_HEADS, BLOCK, dim)
        self.scale = dim**-0.5
        self.window = window
        self.parts = parts
        self.cache = KVCache(
            torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype)
        )
        self.tables = torch.full((len(LENGTHS), max(blocks)), 10**6, dtype=torch.int32)
        self.q: list[Tensor] = []
        self.expected: list[Tensor] = []
        for i, (count, length) in enumerate(zip(blocks, LENGTHS, strict=True)):
            own, order = order[:count], order[count:]
            self.tables[i, :count] = torch.tensor(own)
            q, k, v = (
                torch.randn(length, heads, dim, generator=generator).to(dtype)
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            )
            for position in range(length):
                block, offset = own[position // BLOCK], position % BLOCK
                self.cache.k[block, :, offset] = k[position]
                self.cache.v[block, :, offset] = v[position]
            self.q.append(q)
            wide = (t.double().transpose(0, 1).unsqueeze(0) for t in (q, k, v))
            at = torch.arange(length)
            distance = at[:, None] - at
            seen = (distance if parts else distance.abs()) < (window or length)
            if parts and not i % 2:
                seen &= distance >= 0
            out = torch.nn.functional.scaled_dot_product_attention(*wide, seen, enable_gqa=True)
            self.expected.append(out[0].transpose(0, 1))

    def run(self, attend: Attend, which: Sequence[int]) -> list[Tensor]:
        lengths = [LENGTHS[i] for i in which]
        starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        meta = AttentionMetadata(
            query_start_loc=starts,
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_tables=self.tables[list(which)].contiguous(),
            slot_mapping=torch.empty(0, dtype=torch.int64),
            num_seqs=len(which),
            block_size=BLOCK,
            whole=torch.tensor(which, dtype=torch.int32) % 2 if self.parts else None,
        )
        out = attend(torch.cat([self.q[i] for i in which]), self.cache, meta)
        return list(out.split(lengths))


@cache
def make_texts(dtype: torch.dtype, window: int | None, parts: bool) -> Texts:
    """Return texts for reading only: the oracle answers once for all instruction sets."""
    return Texts(dtype, 32, window, parts=parts)


def native(isa: str, threads: int, split: bool | None, texts: Texts) -> Attend:
    pool = _native.Pool(threads)

    def attend(q: Tensor, cache: KVCache, meta: AttentionMetadata) -> Tensor:
        rules = AttentionRules(texts.scale, texts.window, causal=texts.parts)
        return native_attention(_native.table(isa), pool, q, cache, meta, rules, split=split)

    return attend


@pytest.mark.matrix
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("parts", [False, True])
def test_native(isa: str, dtype: torch.dtype, window: int | None, parts: bool) -> None:
    texts = make_texts(dtype, window, parts)
    everyone = range(len(LENGTHS))
    together = texts.run(native(isa, 2, None, texts), everyone)
    for out, expected in zip(together, texts.expected, strict=True):
        torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=0)
    for threads, split in ((1, None), (3, True)):
        attend = native(isa, threads, split, texts)
        for i in everyone:
            assert torch.equal(texts.run(attend, [i])[0], together[i]), LENGTHS[i]


@pytest.mark.matrix
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_plain(dtype: torch.dtype, window: int | None, parts: bool) -> None:
    texts = make_texts(dtype, window, parts)

    def attend(q: Tensor, cache: KVCache, meta: AttentionMetadata) -> Tensor:
        return paged_attention.paged_attention(
            q, cache, meta, AttentionRules(texts.scale, window, causal=parts)
        )

    together = texts.run(attend, range(len(LENGTHS)))
    for i, expected in enumerate(texts.expected):
        torch.testing.assert_close(together[i].double(), expected, atol=TOLERANCE[dtype], rtol=0)
        assert torch.equal(texts.run(attend, [i])[0], together[i])
