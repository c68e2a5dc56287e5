"""Paged attention against a dense float64 oracle, and bit-equality in every company."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.ops.metadata import AttentionRules, KVCache
from quire.ops.torch_ops import int4
from quire.ops.torch_ops.paged_attention import paged_attention
from quire.ops.torch_ops.reference import quantize_heads, to_float8, write_kv
from tests.golden.harness import make_metadata, spoiled_cache

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@dataclass
class Batch:
    """Random sequences: all their keys and values, and the queries of this step."""

    query_lens: list[int]
    seq_lens: list[int]
    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]

    @classmethod
    def draw(
        cls,
        lens: list[tuple[int, int]],
        heads: tuple[int, int],
        head_dim: int,
        dtype: torch.dtype,
        seed: int,
    ) -> Batch:
        """`lens`: (tokens before this step, tokens of it); `heads`: (kv heads, group)."""
        generator = torch.Generator().manual_seed(seed)

        def normal(rows: int, count: int) -> Tensor:
            return torch.randn(rows, count, head_dim, generator=generator).to(dtype)

        kv_heads, group = heads
        totals = [before + new for before, new in lens]
        return cls(
            query_lens=[new for _, new in lens],
            seq_lens=totals,
            q=[2 * normal(new, kv_heads * group) for _, new in lens],
            k=[normal(total, kv_heads) for total in totals],
            v=[normal(total, kv_heads) for total in totals],
        )


def run_paged(
    batch: Batch,
    block_size: int,
    window: int | None,
    seed: int,
    garbage: float = torch.nan,
    sinks: Tensor | None = None,
    *,
    chunked: bool = False,
) -> Tensor:
    """Through a cache whose blocks lie in random order and are otherwise full of `garbage`."""
    shuffle = random.Random(seed)
    counts = [-(-total // block_size) for total in batch.seq_lens]
    blocks = shuffle.sample(range(sum(counts) + 3), sum(counts))
    tables = [[blocks.pop() for _ in range(count)] for count in counts]
    kv_heads, head_dim = batch.k[0].shape[1:]
    shape = (sum(counts) + 3, kv_heads, block_size, head_dim)
    dtype = batch.k[0].dtype
    cache = KVCache(
        torch.full(shape, garbage, dtype=dtype), torch.full(shape, garbage, dtype=dtype)
    )
    everything = make_metadata(batch.seq_lens, batch.seq_lens, tables, block_size)
    write_kv(torch.cat(batch.k), torch.cat(batch.v), cache, everything.slot_mapping)
    meta = make_metadata(batch.query_lens, batch.seq_lens, tables, block_size)
    rules = AttentionRules(head_dim**-0.5, window, sinks=sinks, chunked=chunked)
    return paged_attention(torch.cat(batch.q), cache, meta, rules)


def run_dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int | None,
    sinks: Tensor | None = None,
    *,
    chunked: bool = False,
) -> Tensor:
    """One sequence, in float64, with the whole matrix of scores."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * q.shape[2] ** -0.5
    row = torch.arange(len(k) - len(q), len(k)).unsqueeze(1)
    column = torch.arange(len(k))
    seen = column <= row
    if window is not None:
        seen &= (column // window == row // window) if chunked else column > row - window
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double().view(-1, 1, 1).expand(-1, len(q), 1)), -1)
    weights = scores.softmax(-1)[..., : len(k)]
    return torch.einsum("hqk,khd->qhd", weights, v)


@settings(deadline=None, max_examples=60)
@given(
    lens=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=1, max_size=4),
    heads=st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4, 7])),
    head_dim=st.sampled_from([4, 6, 16, 64]),
    block_size=st.sampled_from([8, 16, 32]),
    window=st.none() | st.integers(1, 150),
    dtype=DTYPES,
    with_sinks=st.booleans(),
    chunked=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_equals_dense_float64(
    lens: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    with_sinks: bool,
    chunked: bool,
    seed: int,
) -> None:
    batch = Batch.draw(lens, heads, head_dim, dtype, seed)
    sinks = torch.linspace(-3.0, 6.0, heads[0] * heads[1]) if with_sinks else None
    expected = torch.cat(
        [
            run_dense(*qkv, window, sinks, chunked=chunked)
            for qkv in zip(batch.q, batch.k, batch.v, strict=True)
        ]
    )
    got = run_paged(batch, block_size, window, seed, sinks=sinks, chunked=chunked)
    assert got.dtype == dtype
    # Values are of the order of 1; float32 sums of some hundred terms, then one rounding.
    unit = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    torch.testing.assert_close(got.double(), expected, rtol=unit, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(
    length=st.integers(1, 400),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    mates=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 20)), max_size=3),
    window=st.none() | st.integers(1, 200),
    block_size=st.sampled_from([8, 16, 32]),
    dtype=DTYPES,
    seed=st.integers(0, 2**31),
)
def test_bits_do_not_depend_on_company_chunks_or_blocks(
    length: int,
    cuts: list[int],
    mates: list[tuple[int, int]],
    window: int | None,
    block_size: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    whole = Batch.draw([(0, length)], (2, 3), 16, dtype, seed)
    expected = run_paged(whole, 16, window, seed)
    others = Batch.draw(mates, (2, 3), 16, dtype, seed + 1)
    edges = sorted({0, length, *(cut % length for cut in cuts)})
    for start, end in pairwise(edges):
        chunk = Batch(
            query_lens=[*others.query_lens, end - start],
            seq_lens=[*others.seq_lens, end],
            q=[*others.q, whole.q[0][start:end]],
            k=[*others.k, whole.k[0][:end]],
            v=[*others.v, whole.v[0][:end]],
        )
        got = run_paged(chunk, block_size, window, seed + 2)[sum(others.query_lens) :]
        assert torch.equal(got, expected[start:end])


@pytest.mark.parametrize("garbage", [torch.inf, -torch.inf, 1e30, 0.0])
def test_what_lies_outside_the_sequence_does_not_matter(garbage: float) -> None:
    batch = Batch.draw([(13, 5)], (2, 2), 8, torch.float32, seed=5)
    expected = run_paged(batch, 16, None, seed=6)
    assert torch.equal(run_paged(batch, 16, None, seed=7, garbage=garbage), expected)


@pytest.mark.parametrize("window", [None, 20])
def test_an_int8_cache_is_worth_its_products(window: int | None) -> None:
    batch = Batch.draw([(130, 9), (0, 40)], (2, 3), 16, torch.float32, seed=5)
    scaled = [quantize_heads(t) for t in batch.k + batch.v]
    plain = dataclasses.replace(batch, k=[], v=[])
    for i, (q, scale) in enumerate(scaled):
        (plain.k if i < 2 else plain.v).append(q * scale.float().unsqueeze(-1))
    meta = make_metadata(batch.seq_lens, batch.seq_lens, [[*range(9)], [*range(9, 12)]], 16)
    cache = spoiled_cache((12, 2, 16, 16), torch.int8)
    write_kv(torch.cat(batch.k), torch.cat(batch.v), cache, meta.slot_mapping)
    meta = make_metadata(batch.query_lens, batch.seq_lens, [[*range(9)], [*range(9, 12)]], 16)
    got = paged_attention(torch.cat(batch.q), cache, meta, AttentionRules(0.25, window))
    assert torch.equal(got, run_paged(plain, 16, window, seed=6))


def test_an_int4_cache_is_worth_its_levels_rotated_back() -> None:
    """Up to the roundings of two rotations of 16 elements, 5 each, and of sums over 130 keys."""
    batch = Batch.draw([(130, 9), (0, 40)], (2, 3), 16, torch.float32, seed=5)
    plain = dataclasses.replace(batch, k=[], v=[])
    for i, t in enumerate(batch.k + batch.v):
        values = int4.rotate(int4.unpack(int4.pack(t, keys=i < 2)))
        assert float((values - t).norm() / t.norm()) < (0.06 if i < 2 else 0.11)
        (plain.k if i < 2 else plain.v).append(values)
    meta = make_metadata(batch.seq_lens, batch.seq_lens, [[*range(9)], [*range(9, 12)]], 16)
    cache = spoiled_cache((12, 2, 16, 16), torch.uint8)
    write_kv(torch.cat(batch.k), torch.cat(batch.v), cache, meta.slot_mapping)
    meta = make_metadata(batch.query_lens, batch.seq_lens, [[*range(9)], [*range(9, 12)]], 16)
    got = paged_attention(torch.cat(batch.q), cache, meta, AttentionRules(0.25))
    expected = run_paged(plain, 16, None, seed=6)
    largest = max(float(v.abs().max()) for v in plain.v)
    assert float((got - expected).abs().max()) < 150 * 2.0**-24 * 16 * largest


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_cache_of_8_bit_floats_is_worth_its_products(dtype: torch.dtype) -> None:
    batch = Batch.draw([(130, 9), (0, 40)], (2, 3), 16, torch.float32, seed=5)
    plain = dataclasses.replace(batch, k=[], v=[])
    for values, kept, unit in ((batch.k, plain.k, 0.25), (batch.v, plain.v, 0.5)):
        kept.extend(to_float8(t / unit, dtype).float() * unit for t in values)
    meta = make_metadata(batch.seq_lens, batch.seq_lens, [[*range(9)], [*range(9, 12)]], 16)
    cache = spoiled_cache((12, 2, 16, 16), dtype)._replace(k_unit=0.25, v_unit=0.5)
    write_kv(torch.cat(batch.k), torch.cat(batch.v), cache, meta.slot_mapping)
    meta = make_metadata(batch.query_lens, batch.seq_lens, [[*range(9)], [*range(9, 12)]], 16)
    got = paged_attention(torch.cat(batch.q), cache, meta, AttentionRules(0.25))
    assert torch.equal(got, run_paged(plain, 16, None, seed=6))


def test_unused_entries_of_the_table_may_hold_anything() -> None:
    batch = Batch.draw([(13, 5), (290, 1)], (2, 2), 8, torch.float32, seed=5)
    cache = KVCache(*torch.zeros(2, 30, 2, 16, 8))
    tables = [[4, 2], [*range(5, 24)]]
    everything = make_metadata(batch.seq_lens, batch.seq_lens, tables, 16)
    write_kv(torch.cat(batch.k), torch.cat(batch.v), cache, everything.slot_mapping)
    meta = make_metadata(batch.query_lens, batch.seq_lens, tables, 16)
    expected = paged_attention(torch.cat(batch.q), cache, meta, AttentionRules(0.5))
    meta.block_tables[0, 2:] = 10**6
    assert torch.equal(
        paged_attention(torch.cat(batch.q), cache, meta, AttentionRules(0.5)), expected
    )
    rules = AttentionRules(0.5, window=20)
    windowed = paged_attention(torch.cat(batch.q), cache, meta, rules)
    meta.block_tables[1, : (291 - 20) // 16] = -1
    assert torch.equal(paged_attention(torch.cat(batch.q), cache, meta, rules), windowed)


def test_blocks_behind_the_window_are_not_read() -> None:
    """They may belong to another sequence by now, one with infinities perhaps."""
    batch = Batch.draw([(199, 1)], (1, 2), 8, torch.float32, seed=5)
    expected = run_paged(batch, 16, 20, seed=6)
    batch.k[0][:180] = torch.nan
    batch.v[0][:180] = torch.inf
    assert torch.equal(run_paged(batch, 16, 20, seed=6), expected)
