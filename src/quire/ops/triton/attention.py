"""Launches of attention and of what writes its cache."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.torch_ops import paged_attention as plain
from quire.ops.torch_ops import reference
from quire.ops.triton.kernels import attention as kernels
from quire.ops.triton.kernels import rotary
from quire.ops.triton.launch import COMPUTE, has_float8, power_of_two, processors
from quire.ops.triton.rows import rms_norm

ROWS = 64
"""Rows of a tile: what the matrix units of a Hopper card multiply at once. Prompts and single
tokens have the same, because other products would add in another order."""
KEYS = 64
SEGMENT = 512


def supported(cache: KVCache[Tensor]) -> bool:
    """Return whether the kernels read this cache; they do not rotate heads of 4 bits."""
    if cache.packed or cache.v is None:
        return False
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
) -> Tensor:
    """See `reference.rope_kv_write`."""
    if not supported(cache):
        return reference.rope_kv_write(
            qkv, positions, cos_sin, q_norm, k_norm, eps, cache, slot_mapping,
            heads, kv_heads, head_dim,
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
        kind = _kind(cache)
        most = torch.finfo(cache.k.dtype).max if cache.k.is_floating_point() else 127.0
        rotary.rope_kv_write[(tokens, heads + 2 * kv_heads)](
            qkv, positions, cos_sin, q_norm, k_norm, eps,
            cache.k, cache.v, cache.k_scale, cache.v_scale, cache.k_unit, cache.v_unit, most,
            slot_mapping, out, qkv.stride(0), heads, kv_heads,
            width=head_dim, rotary=0 if cos_sin is None else cos_sin.shape[1],
            block_size=cache.k.shape[2], q_normed=q_norm is not None, k_normed=k_norm is not None,
            kind=kind, block=power_of_two(head_dim), num_warps=1,
        )  # fmt: skip
    return out


def _kind(cache: KVCache[Tensor]) -> str:
    """Return how the cache stores a value."""
    if cache.k_scale is not None:
        return "int8" if cache.k.dtype == torch.int8 else "float8"
    return "unit" if cache.k.itemsize == 1 else "plain"


class Tiles(NamedTuple):
    """A step's rows in tiles, for one number of tokens in a tile.

    Attributes:
        table: int32 [tiles, 5], as `kernels.attention` reads it.
        longest: most tokens of a sequence.
    """

    table: Tensor
    longest: int


def tiles_of(meta: AttentionMetadata[Tensor], tokens: int, device: torch.device) -> Tiles:
    """Return tiles of at most so many tokens; made once per step."""
    known: dict[Any, Tiles] = meta.__dict__.setdefault("triton_tiles", {})
    found = known.get(tokens)
    if found is None:
        starts = meta.query_start_loc[: meta.num_seqs + 1].astype(np.int64)
        lengths = meta.seq_lens[: meta.num_seqs].astype(np.int64)
        rows = np.diff(starts)
        counts = -(-rows // tokens)
        sequence = np.repeat(np.arange(meta.num_seqs), counts)
        within = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = starts[sequence] + within * tokens
        table = np.stack(
            (
                first,
                np.minimum(starts[sequence + 1] - first, tokens),
                sequence,
                lengths[sequence] - rows[sequence] + within * tokens,
                lengths[sequence],
            ),
            axis=1,
        ).astype(np.int32)
        found = Tiles(torch.from_numpy(table).to(device), int(lengths.max(initial=0)))
        known[tokens] = found
    return found


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
    tiles = tiles_of(meta, max(ROWS // block_group, 1), q.device)
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    if not len(tiles.table):
        return out
    segments = -(-tiles.longest // SEGMENT)
    # Prompts have enough tiles, and parts of all their rows would take much memory.
    split = segments > 1 and len(tiles.table) * kv_heads < 2 * processors(q.device)
    parts: list[Tensor | None] = [None] * 3
    if split:
        shape = (len(q), heads, segments)
        parts = [
            torch.zeros((*shape, width), dtype=torch.float32, device=q.device),
            torch.full(shape, -torch.inf, dtype=torch.float32, device=q.device),
            torch.zeros(shape, dtype=torch.float32, device=q.device),
        ]
    compute = q.dtype if cache.k.dtype == q.dtype or cache.k.itemsize == 1 else torch.float32
    shape_of = {"width": width, "block_width": max(power_of_two(width), 16)}
    sunk = sinks is not None
    kernels.attention[(len(tiles.table), kv_heads, segments if split else 1)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, cache.v_unit, sinks,
        meta.block_tables, tiles.table, out, *parts, scale * cache.k_unit,
        softcap or 1.0, window or 1, segments, heads, kv_heads, q.stride(0),
        meta.block_tables.stride(0),
        block_size=block_size, group=group, rows=max(ROWS, block_group), block_group=block_group,
        keys=KEYS, segment=SEGMENT, causal=causal, windowed=window is not None, chunked=chunked,
        capped=softcap is not None, scaled=cache.k_scale is not None, sunk=sunk, split=split,
        compute=COMPUTE[compute], num_warps=4, enable_fp_fusion=False, **shape_of,
    )  # fmt: skip
    if split:
        kernels.merge[(len(q), heads)](
            *parts, sinks, out, cache.v_unit, segments, heads, sunk=sunk, num_warps=1,
            enable_fp_fusion=False, **shape_of,
        )  # fmt: skip
    return out
