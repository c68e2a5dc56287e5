"""Launches of attention and of what writes its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.torch_ops import int4, reference
from quire.ops.torch_ops import paged_attention as plain
from quire.ops.triton import tables
from quire.ops.triton.kernels import attention as kernels
from quire.ops.triton.kernels import rotary
from quire.ops.triton.launch import COMPUTE, has_float8, power_of_two, processors
from quire.ops.triton.rows import rms_norm

ROWS = 64
"""Rows of a tile: what the matrix units of a Hopper card multiply at once. Prompts and single
tokens have the same, because other products would add in another order."""
KEYS = 64
SEGMENT = 512
HALVES = sum(level << 8 * i for i, level in enumerate(int4.LEVELS[8:]))
"""The positive levels of 4-bit codes, a byte each."""


def supported(cache: KVCache[Tensor]) -> bool:
    """Return whether the kernels read this cache."""
    return cache.k.dtype != torch.float8_e4m3fn or has_float8(cache.k.device)


def rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    cache: KVCache[Tensor],
    slot_mapping: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_norm: Tensor | None = None,
) -> Tensor:
    """See `reference.rope_kv_write`."""
    if not supported(cache):
        return reference.rope_kv_write(
            qkv, positions, cos_sin, q_norm, k_norm, eps, cache, slot_mapping,
            heads, kv_heads, head_dim, v_norm,
        )  # fmt: skip
    tokens = len(qkv)
    q_width, kv_width = heads * head_dim, kv_heads * head_dim
    if q_norm is not None and len(q_norm) != head_dim:  # over all heads at once
        qkv[:, :q_width] = rms_norm(qkv[:, :q_width], q_norm, eps)
        q_norm = None
    if k_norm is not None and len(k_norm) != head_dim:
        keys = slice(q_width, q_width + kv_width)
        qkv[:, keys] = rms_norm(qkv[:, keys], k_norm, eps)
        k_norm = None
    out = torch.empty((tokens, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if tokens:
        rotary.rope_kv_write[(tokens, heads + 2 * kv_heads)](
            qkv, positions, cos_sin, q_norm, k_norm, v_norm, eps,
            cache.k, cache.v, cache.k_scale, cache.v_scale, cache.k_unit, cache.v_unit, most(cache),
            slot_mapping, out, qkv.stride(0), heads, kv_heads,
            width=head_dim, rotary=0 if cos_sin is None else cos_sin.shape[1],
            block_size=cache.k.shape[2], q_normed=q_norm is not None, k_normed=k_norm is not None,
            v_normed=v_norm is not None, **stored(cache, head_dim),
            block=power_of_two(head_dim), num_warps=1,
        )  # fmt: skip
    return out


def most(cache: KVCache[Tensor]) -> float:
    """Return the largest number that the cache's type holds."""
    return torch.finfo(cache.k.dtype).max if cache.k.is_floating_point() else 127.0


def stored(cache: KVCache[Tensor], width: int) -> dict[str, Any]:
    """Return how the cache stores a head, as kernels that write take it."""
    if cache.packed:
        return {"kind": "int4", "levels": int4.LEVELS, "bits": _bits(width)}
    kind = "unit" if cache.k.itemsize == 1 else "plain"
    if cache.k_scale is not None:
        kind = "int8" if cache.k.dtype == torch.int8 else "float8"
    return {"kind": kind, "levels": 0, "bits": 0}


def _bits(width: int) -> int:
    """Return the logarithm of the size of a head's Hadamard matrix."""
    return (width & -width).bit_length() - 1


def rotate(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `int4.rotate` of heads [T, heads, width], rounded to `dtype`."""
    rows, heads, width = x.shape
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    rotary.hadamard[(rows, heads)](
        x, out, heads, x.stride(0), width=width, bits=_bits(width), block=power_of_two(width),
        num_warps=1,
    )  # fmt: skip
    return out


class Split(NamedTuple):
    """Whether segments have programs of their own, how many there are, and where parts go.

    Attributes:
        parts: float32 [T, heads, segments, width], [T, heads, segments] twice; or Nones.
    """

    on: bool
    segments: int
    parts: Sequence[Tensor | None]

    @classmethod
    def of(
        cls, meta: AttentionMetadata[Tensor], programs: int, rows: int, heads: int, width: int,
        device: torch.device,
    ) -> Split:  # fmt: skip
        """Split if few programs would run: prompts' parts would take much memory."""
        segments = -(-tables.longest(meta) // SEGMENT)
        if segments <= 1 or programs >= 2 * processors(device):
            return cls(False, segments, (None, None, None))
        shape = (rows, heads, segments)
        parts = (
            torch.zeros((*shape, width), dtype=torch.float32, device=device),
            torch.full(shape, -torch.inf, dtype=torch.float32, device=device),
            torch.zeros(shape, dtype=torch.float32, device=device),
        )
        return cls(True, segments, parts)

    def merge(
        self, out: Tensor, unit: float, sinks: Tensor | None, block_width: int
    ) -> None:  # fmt: skip
        """Add the parts into `out` [T, heads, width]."""
        rows, heads, width = out.shape
        if self.on:
            kernels.merge[(rows, heads)](
                *self.parts, sinks, out, unit, self.segments, heads, sunk=sinks is not None,
                width=width, block_width=block_width, num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip


def paged_attention(
    q: Tensor,
    cache: KVCache[Tensor],
    meta: AttentionMetadata[Tensor],
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = True,
    sinks: Tensor | None = None,
    chunked: bool = False,
) -> Tensor:
    """See `torch_ops.paged_attention.paged_attention`."""
    if not supported(cache) or meta.whole is not None:
        return plain.paged_attention(q, cache, meta, scale, window, softcap, causal, sinks, chunked)
    heads, width = q.shape[1:]
    kv_heads, block_size = cache.k.shape[1:3]
    group = heads // kv_heads
    block_group = power_of_two(group)
    tiles = tables.table(meta, q.device, tables.tiles, max(ROWS // block_group, 1))
    # Rotated heads are rotated back, and rounded after it.
    wanted, dtype = q.dtype, torch.float32 if cache.packed else q.dtype
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    if not len(tiles):
        return out
    compute = q.dtype if cache.k.dtype == q.dtype or cache.k.itemsize == 1 else torch.float32
    if cache.packed:
        q = rotate(q, q.dtype)
    split = Split.of(meta, len(tiles) * kv_heads, len(q), heads, width, q.device)
    block_width = max(power_of_two(width), 16)
    kernels.attention[(len(tiles), kv_heads, split.segments if split.on else 1)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, cache.v_unit, sinks,
        meta.block_tables, tiles, out, *split.parts, scale * cache.k_unit,
        softcap or 1.0, window or 1, split.segments, heads, kv_heads, q.stride(0),
        meta.block_tables.stride(0),
        block_size=block_size, width=width, group=group, rows=max(ROWS, block_group),
        block_group=block_group, block_width=block_width, keys=KEYS, segment=SEGMENT,
        causal=causal, windowed=window is not None, chunked=chunked, capped=softcap is not None,
        scaled=cache.k_scale is not None, sunk=sinks is not None, split=split.on,
        halves=HALVES if cache.packed else 0, compute=COMPUTE[compute], num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    split.merge(out, cache.v_unit, sinks, block_width)
    return rotate(out, wanted) if cache.packed else out
