"""Attention and its cache: against the reference, and the same bits however it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, AttentionRules, Heads, KVCache
from quire.ops.torch_ops import paged_attention as plain
from quire.ops.torch_ops import reference
from quire.ops.triton import attention

BLOCKS = 40
CACHES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int8": torch.int8, "int4": torch.uint8,
    "fp8": torch.float8_e4m3fn, "fp8_scaled": torch.float8_e5m2,
}  # fmt: skip


def empty_cache(kind: str, kv_heads: int, block_size: int, width: int) -> KVCache[Tensor]:
    slots, shape = (BLOCKS, kv_heads, block_size), (BLOCKS, kv_heads, block_size, width)
    if kind == "int4":
        rows = ((*slots, width // 2),) * 2 + (slots, slots, (*slots, width // 8))
        return KVCache(*(torch.zeros(row, dtype=torch.uint8) for row in rows))
    k, v = (torch.zeros(shape, dtype=CACHES[kind]) for _ in range(2))
    if kind in ("int8", "fp8_scaled"):
        scales = [torch.zeros(slots, dtype=torch.bfloat16) for _ in range(2)]
        return KVCache(k, v, *scales)
    return KVCache(k, v, k_unit=0.5 if kind == "fp8" else 1.0)


def metadata(lengths: list[int], news: list[int], block_size: int) -> AttentionMetadata[Tensor]:
    """Sequences of these lengths, whose last tokens are new; their blocks are scattered."""
    blocks = torch.from_numpy(np.random.default_rng(1).permutation(BLOCKS).astype(np.int32))
    tables, used, slots = torch.zeros(len(lengths), 20, dtype=torch.int32), 0, []
    for i, (length, new) in enumerate(zip(lengths, news, strict=True)):
        count = -(-length // block_size)
        tables[i, :count] = blocks[used : used + count]
        used += count
        slots += [
            int(tables[i, p // block_size]) * block_size + p % block_size
            for p in range(length - new, length)
        ]
    return AttentionMetadata(
        query_start_loc=np.cumsum([0, *news]).astype(np.int32),
        seq_lens=np.array(lengths, np.int32),
        block_tables=tables,
        slot_mapping=torch.tensor(slots),
        num_seqs=len(lengths),
        block_size=block_size,
    )


def filled(kind: str, meta: AttentionMetadata[Tensor], heads: int, kv_heads: int, width: int,
           dtype: torch.dtype = torch.float32) -> KVCache[Tensor]:  # fmt: skip
    """A cache in which all tokens of the sequences are written, by the reference."""
    cache = empty_cache(kind, kv_heads, meta.block_size, width)
    lengths = meta.seq_lens.tolist()
    everything = metadata(lengths, lengths, meta.block_size)
    values = torch.randn(
        2, sum(lengths), kv_heads, width, generator=torch.Generator().manual_seed(3)
    )
    reference.write_kv(*values.to(dtype), cache, everything.slot_mapping)
    return cache


def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some tens of keys have several segments of several tiles."""
    monkeypatch.setattr(attention, "SEGMENT", 16)
    monkeypatch.setattr(attention, "KEYS", 16)


RULES: dict[str, dict[str, Any]] = {
    "causal": {},
    "window": {"window": 19},
    "chunked": {"window": 24, "chunked": True},
    "capped": {"softcap": 2.0, "sinks": torch.tensor([0.3, -1.0, 2.0, 0.5])},
    "encoder": {"causal": False},
    "local": {"causal": False, "window": 9},
}


SOON = ("capped", "float16", "int8", "int4")
"""Rules and caches that `make test` has time for: the interpreter is slow."""


@pytest.mark.parametrize(
    "rule", [rule if rule in SOON else pytest.param(rule, marks=pytest.mark.slow) for rule in RULES]
)
def test_rules(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short_segments(monkeypatch)
    given = RULES[rule]
    rules = AttentionRules(0.2, **given)
    news = [8, 1] if given.get("causal", True) else [18, 5]
    meta = metadata([40, 10] if given.get("causal", True) else news, news, 16)
    cache = filled("float32", meta, 4, 2, 24)
    q = torch.randn(sum(news), 4, 24, generator=torch.Generator().manual_seed(5))
    expected = plain.paged_attention(q, cache, meta, rules)
    found = attention.paged_attention(q, cache, meta, rules)
    # Weights sum to 1; both sum some hundred products of float32.
    assert torch.allclose(found, expected, rtol=0, atol=2e-6)
    monkeypatch.setattr(attention, "processors", lambda device: 0)
    assert torch.equal(attention.paged_attention(q, cache, meta, rules), found)


@pytest.mark.parametrize(
    "kind",
    [kind if kind in SOON else pytest.param(kind, marks=pytest.mark.slow) for kind in CACHES],
)
def test_caches(kind: str) -> None:
    dtype = CACHES[kind] if kind in ("float16", "bfloat16") else torch.float32
    meta = metadata([33, 60], [1, 5], 8)
    cache = filled(kind, meta, 6, 2, 40, dtype)
    q = torch.randn(6, 6, 40, generator=torch.Generator().manual_seed(6)).to(dtype)
    expected = plain.paged_attention(q, cache, meta, AttentionRules(0.15))
    found = attention.paged_attention(q, cache, meta, AttentionRules(0.15))
    # In 16 bits, softmax weights are rounded before they multiply values of about 1.
    atol = {"float16": 2e-3, "bfloat16": 1.6e-2}.get(kind, 4e-6)
    assert torch.allclose(found, expected, rtol=0, atol=atol)


def test_weights_times_scales_are_normal_numbers_in_float16() -> None:
    """One key outweighs each of the others, whose weights times scales of e5m2 are about 1e-7."""
    meta = metadata([300], [1], 16)
    cache = filled("fp8_scaled", meta, 1, 1, 16)
    block = meta.block_tables[0, 0]
    key = cache.k[block, 0, :1].float() * cache.k_scale[block, 0, :1].float()
    q = (3.0 * key[None]).half()
    expected = plain.paged_attention(q.float(), cache, meta, AttentionRules(0.2))
    found = attention.paged_attention(q, cache, meta, AttentionRules(0.2))
    # Weights round once, sums of values of about 1 too.
    assert torch.allclose(found.float(), expected, rtol=0, atol=2.0**-10)


@pytest.mark.parametrize(
    "dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_chunks_change_no_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt in tiles of 128 rows, chunks in tiles of 64, with and without split segments."""
    short_segments(monkeypatch)
    kind = str(dtype).removeprefix("torch.")
    whole = metadata([24], [24], 16)
    cache = filled(kind, whole, 4, 1, 16, dtype)
    q = torch.randn(24, 4, 16, generator=torch.Generator().manual_seed(7)).to(dtype)
    expected = attention.paged_attention(q, cache, whole, AttentionRules(0.3))
    for first, last, programs in ((1, 9, 0), (9, 23, 1000), (23, 24, 1000)):
        monkeypatch.setattr(attention, "processors", lambda device, n=programs: n)
        chunk = metadata([last], [last - first], 16)
        found = attention.paged_attention(q[first:last], cache, chunk, AttentionRules(0.3))
        assert torch.equal(found, expected[first:last])


def test_a_window_needs_the_parts_of_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are fewer than the sequence's, and the first may begin before the window."""
    short_segments(monkeypatch)
    monkeypatch.setattr(attention, "processors", lambda device: 1000)
    splits = []

    def noted(*args: Any, of: Any = attention.Split.of) -> attention.Split:
        splits.append(of(*args))
        return splits[-1]

    monkeypatch.setattr(attention.Split, "of", noted)
    meta = metadata([300], [1], 16)
    cache = filled("float32", meta, 4, 1, 16)
    q = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(5))
    found = attention.paged_attention(q, cache, meta, AttentionRules(0.2, 14))
    assert [(split.on, split.segments) for split in splits] == [(True, 3)]
    expected = plain.paged_attention(q, cache, meta, AttentionRules(0.2, 14))
    assert torch.allclose(found, expected, rtol=0, atol=2e-6)


def test_a_prompt_has_large_tiles_unless_its_heads_are_wide() -> None:
    def shape(rows: int, dtype: torch.dtype, width: int) -> attention.Shape:
        return attention.shape_of(metadata([rows, 1], [rows, 1], 16), dtype, 4, width)

    assert shape(16, torch.bfloat16, 128) is attention.FEW
    assert shape(17, torch.bfloat16, 128) is attention.MANY
    assert shape(17, torch.bfloat16, 256) is attention.FEW
    assert shape(17, torch.float32, 128) is attention.WIDE


def test_when_programs_share_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """If few tiles would run, and the parts are neither single nor too large."""
    monkeypatch.setattr(attention, "processors", lambda device: 10)

    def programs(keys: int, tiles: int, rows: int) -> int:
        split = attention.Split.of(keys, tiles, (rows, 32, 128), torch.device("cpu"))
        assert split.on == (split.parts[0] is not None) == (split.programs > 1)
        return split.programs

    segment = attention.SEGMENT
    assert programs(segment, 1, 1) == 1
    assert programs(segment + 1, 1, 1) == 2
    assert programs(99 * segment, 8, 1) == 5
    assert programs(99 * segment, 20, 1) == 2
    assert programs(99 * segment, 21, 1) == 1
    rows = attention.PARTS_BYTES // (4 * 32 * 128 * 4)
    monkeypatch.setattr(torch, "empty", lambda *args, **given: torch.zeros(()))
    assert programs(4 * segment, 8, rows) == 4
    assert programs(4 * segment, 8, rows + 1) == 1


@pytest.mark.parametrize(
    ("kind", "norm"),
    [("float32", "head"), ("float16", "whole"), ("int8", "none"), ("int8", "head")],
)
def test_what_is_written(kind: str, norm: str) -> None:
    """The same q and the same cache as the reference; a rotation may round the other way."""
    heads, kv_heads, width = 3, 2, 24
    meta = metadata([4, 30], [4, 2], 8)
    generator = torch.Generator().manual_seed(8)
    qkv = torch.randn(6, (heads + 2 * kv_heads) * width, generator=generator)
    if kind == "float16":
        qkv = qkv.half()
    positions = torch.tensor([*range(4), 28, 29])
    angles = torch.rand(64, 8, generator=generator)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    gains: list[Tensor | None] = [None, None]
    if norm != "none":
        wide = norm == "whole"
        gains = [
            torch.rand(width * (n if wide else 1), generator=generator).to(qkv.dtype)
            for n in (heads, kv_heads)
        ]
    found, expected = (empty_cache(kind, kv_heads, 8, width) for _ in range(2))
    v_norm = torch.rand(width, generator=generator) + 0.5 if norm == "head" else None
    cut: Heads[Tensor] = Heads(heads, kv_heads, width, *gains, v_norm, 1e-6)
    slots = meta.slot_mapping
    q = attention.rope_kv_write(qkv.clone(), positions, cos_sin, found, slots, cut)
    plain_q = reference.rope_kv_write(qkv.clone(), positions, cos_sin, expected, slots, cut)
    half = 2.0**-11 if kind == "float16" else 2.0**-22
    assert torch.allclose(q.float(), plain_q.float(), rtol=4 * half, atol=4 * half)
    steps = 1 / 127 if kind == "int8" else 4 * half
    for a, b, a_scale, b_scale in zip(
        found[:2], expected[:2], found[2:4], expected[2:4], strict=True
    ):
        numbers, wanted = a.float(), b.float()
        if a_scale is not None and b_scale is not None:
            assert torch.equal(a_scale == 0, b_scale == 0)
            numbers = numbers * a_scale.float()[..., None]
            wanted = wanted * b_scale.float()[..., None]
        largest = wanted.abs().amax(-1, keepdim=True)
        assert ((numbers - wanted).abs() <= 1.01 * steps * largest).all()
        assert (numbers == wanted).float().mean() > 0.9


@pytest.mark.parametrize("width", [24, 16])
def test_4_bit_codes_are_those_of_the_reference(width: int) -> None:
    """The same additions in the same order; the scale of a head of zeros is zero."""
    meta = metadata([4], [4], 8)
    qkv = torch.randn(4, 4 * width, generator=torch.Generator().manual_seed(10))
    qkv[2, 3 * width :] = 0
    found, expected = (empty_cache("int4", 1, 8, width) for _ in range(2))
    for op, cache in ((attention.rope_kv_write, found), (reference.rope_kv_write, expected)):
        op(qkv.clone(), torch.arange(4), None, cache, meta.slot_mapping, Heads(2, 1, width))
    for a, b in zip(found.tensors, expected.tensors, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["fp8", "fp8_scaled"])
def test_8_bit_floats_are_written(kind: str) -> None:
    """Numbers that 8 bits hold exactly: the interpreter rounds others wrongly."""
    meta = metadata([3], [3], 8)
    found, expected = (empty_cache(kind, 1, 8, 16) for _ in range(2))
    most = torch.finfo(found.k.dtype).max
    qkv = torch.randint(-7, 8, (3, 48), generator=torch.Generator().manual_seed(9)) / 8
    qkv[:, 16::16] = most / 1024
    for op, cache in ((attention.rope_kv_write, found), (reference.rope_kv_write, expected)):
        op(qkv.clone(), torch.arange(3), None, cache, meta.slot_mapping, Heads(1, 1, 16))
    for a, b in zip(found.tensors, expected.tensors, strict=True):
        assert torch.equal(a.float(), b.float())


def test_a_sick_value_spoils_its_own_scale() -> None:
    meta = metadata([3], [3], 8)
    qkv = torch.ones(3, 3 * 16)
    qkv[1, 20] = torch.nan
    qkv[2, 40] = torch.inf
    cache = empty_cache("int8", 1, 8, 16)
    attention.rope_kv_write(qkv, torch.arange(3), None, cache, meta.slot_mapping, Heads(1, 1, 16))
    block = int(meta.block_tables[0, 0])
    assert cache.k_scale[block, 0, :3].isfinite().tolist() == [True, False, True]
    assert cache.v_scale[block, 0, :3].isfinite().tolist() == [True, True, False]


@pytest.mark.parametrize("kind", ["float32", "int4"])
def test_a_void_row_writes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that pad a batch have slot -1, and sequences of no tokens."""
    cache = empty_cache(kind, 1, 8, 16)
    for tensor in cache.tensors:
        tensor.fill_(3)
    before = [tensor.clone() for tensor in cache.tensors]
    slots = torch.tensor([-1, 5])
    q = attention.rope_kv_write(
        torch.ones(2, 48), torch.zeros(2, dtype=torch.int64), None, cache, slots, Heads(1, 1, 16)
    )
    for tensor, old in zip(cache.tensors, before, strict=True):
        changed = (tensor != old).flatten(3) if tensor.dim() > 3 else (tensor != old)[..., None]
        assert not changed[1:].any()
        assert not changed[0, 0, [0, 1, 2, 3, 4, 6, 7]].any()
    void = AttentionMetadata(
        query_start_loc=np.array([0, 1, 2], np.int32),
        seq_lens=np.array([0, 6], np.int32),
        block_tables=torch.zeros(2, 1, dtype=torch.int32),
        slot_mapping=slots,
        num_seqs=2,
        block_size=8,
    )
    for segment in (512, 4):  # one program a tile, or two
        monkeypatch.setattr(attention, "SEGMENT", segment)
        monkeypatch.setattr(attention, "KEYS", 4)
        found = attention.paged_attention(q, cache, void, AttentionRules(0.1))
        assert not found[0].any()
        assert found[1].any()
