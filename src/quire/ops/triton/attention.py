"""Launches of attention and of what writes its cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, AttentionRules, Heads, KVCache
from quire.ops.torch_ops import paged_attention as plain
from quire.ops.torch_ops import reference
from quire.ops.triton import launch, tables
from quire.ops.triton.kernels import attention as kernels
from quire.ops.triton.kernels import rotary
from quire.ops.triton.launch import (
    COMPUTE,
    COUNTERS,
    counters,
    overlap,
    power_of_two,
    processors,
    stages,
)  # fmt: skip
from quire.ops.triton.rows import normalize
from quire.ops.triton.tuning import HeadTuning, chosen

KEYS = 64
"""Keys of a tile. A row's bits depend on it and on SEGMENT, and on no other size."""
SEGMENT = 512
AHEAD = True
"""Read the first keys of a few rows into the second-level cache while the kernel before runs."""


class Shape(NamedTuple):
    """Rows of a tile, and how it runs. Tiles of 64 rows or more meet the same instructions."""

    rows: int
    num_warps: int
    num_stages: int
    many: bool = False

    def tuned(self, sizes: HeadTuning) -> Shape:
        """Return the shape with these sizes; 0 keeps its own. A warp has 16 rows in any case."""
        if not self.many:
            return self._replace(num_stages=sizes.stages or self.num_stages)
        rows = sizes.prompt_rows or self.rows
        return Shape(rows, rows // 16, sizes.prompt_stages or self.num_stages, True)


FEW = Shape(64, 4, 3)
MANY = Shape(128, 8, 3, True)
WIDE = Shape(64, 4, 1)
"""Of a token's heads; of a prompt's; of float32, which has no matrix units."""


def supported(cache: KVCache[Tensor]) -> bool:
    """Return whether the kernels read this cache."""
    return cache.k.dtype != torch.float8_e4m3fn or launch.card(cache.k.device).float8


def rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    cache: KVCache[Tensor],
    slot_mapping: Tensor,
    heads: Heads[Tensor],
) -> Tensor:
    """See `reference.rope_kv_write`."""
    if not supported(cache):
        return reference.rope_kv_write(qkv, positions, cos_sin, cache, slot_mapping, heads)
    tokens, (q_heads, kv_heads, head_dim, q_norm, k_norm, v_norm, eps) = len(qkv), heads
    q_width, kv_width = q_heads * head_dim, kv_heads * head_dim
    if q_norm is not None and len(q_norm) != head_dim:  # over all heads at once
        normalize(qkv[:, :q_width], q_norm, eps)
        q_norm = None
    if k_norm is not None and len(k_norm) != head_dim:
        normalize(qkv[:, q_width : q_width + kv_width], k_norm, eps)
        k_norm = None
    out = torch.empty((tokens, q_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if tokens:
        rotary.rope_kv_write[(tokens, q_heads + 2 * kv_heads)](
            qkv, positions, cos_sin, q_norm, k_norm, v_norm, eps,
            cache.k, cache.v, cache.k_scale, cache.v_scale, cache.k_signs, cache.k_unit,
            cache.v_unit, most(cache), slot_mapping, out, qkv.stride(0), q_heads, kv_heads,
            width=head_dim, rotary=0 if cos_sin is None else cos_sin.shape[1],
            block_size=cache.k.shape[2], q_normed=q_norm is not None, k_normed=k_norm is not None,
            v_normed=v_norm is not None, **stored(cache, head_dim),
            block=power_of_two(head_dim), num_warps=1, enable_fp_fusion=False,
            **overlap(qkv.device),
        )  # fmt: skip
    return out


def cache_name(cache: KVCache[Tensor]) -> str:
    """Return the name of a cache's type, as `--kv-cache-dtype` has it."""
    return "int4" if cache.packed else str(cache.k.dtype).removeprefix("torch.")


def most(cache: KVCache[Tensor]) -> float:
    """Return the largest number that the cache's type holds."""
    return torch.finfo(cache.k.dtype).max if cache.k.is_floating_point() else 127.0


def lift(cache: KVCache[Tensor]) -> float:
    """Return a power of two that keeps weights times scales normal numbers, also in float16.

    A scale is the largest value over `most`, which is 2e-5 for e5m2.
    """
    return 1.0 if cache.k_scale is None else 2.0 ** int(math.log2(most(cache)))


def lines(cache: KVCache[Tensor]) -> int:
    """Return a power of two of lines of 128 bytes that hold a head of the cache; 0 if not AHEAD."""
    return power_of_two(-(-cache.k.shape[-1] * cache.k.itemsize // 128)) if AHEAD else 0


def stored(cache: KVCache[Tensor], width: int) -> dict[str, Any]:
    """Return how the cache stores a head, as kernels that write take it."""
    if cache.packed:
        return {"kind": "int4", "bits": _bits(width)}
    kind = "unit" if cache.k.itemsize == 1 else "plain"
    if cache.k_scale is not None:
        kind = "int8" if cache.k.dtype == torch.int8 else "float8"
    return {"kind": kind, "bits": 0}


def _bits(width: int) -> int:
    """Return the logarithm of the size of a head's Hadamard matrix."""
    return (width & -width).bit_length() - 1


def rotate(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `int4.rotate` of heads [T, heads, width], rounded to `dtype`."""
    rows, heads, width = x.shape
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    rotary.hadamard[(rows, heads)](
        x, out, heads, x.stride(0), width=width, bits=_bits(width), block=power_of_two(width),
        num_warps=1, enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out


WAVES = 4
"""Programs per processor that share segments."""


class Split(NamedTuple):
    """How many programs share the segments of a tile, and where their parts go.

    Attributes:
        segments: most segments that a tile has.
        arrivals: see `launch.counters`.
        parts: float32 [T, heads, segments, width], [T, heads, segments] twice; or Nones.
    """

    programs: int
    segments: int
    arrivals: Tensor
    parts: Sequence[Tensor | None] = (None, None, None)

    @property
    def on(self) -> bool:
        return self.programs > 1

    @classmethod
    def of(
        cls,
        keys: int,
        tiles: int,
        shape: tuple[int, ...],
        device: torch.device,
        waves: int = WAVES,
    ) -> Split:
        """Split if few tiles of at most `keys` keys would run.

        Args:
            shape: rows, heads, width.
            waves: programs per processor.
        """
        segments, arrivals = -(-keys // SEGMENT), counters(device)
        programs = min(segments, waves * processors(device) // tiles)
        if programs <= 1 or 4 * segments * math.prod(shape) > PARTS_BYTES or tiles > COUNTERS:
            return cls(1, segments, arrivals)
        rows, heads, width = shape
        parts = [
            torch.empty((rows, heads, segments, *more), dtype=torch.float32, device=device)
            for more in ((width,), (), ())
        ]
        return cls(programs, segments, arrivals, parts)


PARTS_BYTES = 1 << 28
"""Parts may take so much memory: without them a step is slower, and has the same bits."""


def shape_of(
    meta: AttentionMetadata[Tensor], compute: torch.dtype, block_group: int, block_width: int
) -> Shape:
    """Return the shape of tiles for a step. Wide heads leave no room for more rows."""
    if compute == torch.float32:
        return WIDE
    rows = int(np.diff(meta.query_start_loc[: meta.num_seqs + 1]).max(initial=0))
    return FEW if rows * block_group <= FEW.rows or block_width > 128 else MANY


def paged_attention(
    q: Tensor,
    cache: KVCache[Tensor],
    meta: AttentionMetadata[Tensor],
    rules: AttentionRules[Tensor],
) -> Tensor:
    """See `torch_ops.paged_attention.paged_attention`."""
    if not supported(cache) or meta.whole is not None:
        return plain.paged_attention(q, cache, meta, rules)
    scale, window, softcap, causal, sinks, chunked, _ = rules
    heads, width = q.shape[1:]
    kv_heads, block_size = cache.k.shape[1:3]
    group = heads // kv_heads
    block_group = power_of_two(group)
    compute = q.dtype if cache.k.dtype == q.dtype or cache.k.itemsize == 1 else torch.float32
    block_width = max(power_of_two(width), 16)
    sizes = chosen(q.device).heads(heads, kv_heads, width, cache_name(cache))
    shape = shape_of(meta, compute, block_group, block_width)
    shape = shape if compute == torch.float32 else shape.tuned(sizes)
    tokens = max(shape.rows // block_group, 1)
    tiles = tables.table(meta, q.device, tables.tiles, tokens)
    # Rotated heads are rotated back, and rounded after it.
    wanted, dtype = q.dtype, torch.float32 if cache.packed else q.dtype
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    if not len(tiles):
        return out
    if cache.packed:
        q = rotate(q, q.dtype)
    keys = tables.longest(meta)
    if window is not None:  # and a segment of which it sees the end
        keys = min(keys, tokens + (1 if causal else 2) * window + SEGMENT)
    waves = max(sizes.waves, 0) if sizes.waves else WAVES
    split = Split.of(keys, len(tiles) * kv_heads, (len(q), heads, width), q.device, waves)
    kernels.attention[(len(tiles), kv_heads, split.programs)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, cache.k_signs,
        cache.v_unit / lift(cache), sinks, meta.block_tables, tiles, out, split.arrivals,
        *split.parts, scale * cache.k_unit, softcap or 1.0, window or 1, split.segments,
        heads, kv_heads, q.stride(0), meta.block_tables.stride(0),
        block_size=block_size, width=width, group=group, rows=max(shape.rows, block_group),
        block_group=block_group, block_width=block_width, keys=KEYS,
        segment=SEGMENT, causal=causal, windowed=window is not None, chunked=chunked,
        capped=softcap is not None, split=split.on, smooth=shape.many and window is None,
        packed=cache.packed, lift=lift(cache), ahead=lines(cache) if not shape.many else 0,
        compute=COMPUTE[compute],
        num_warps=shape.num_warps, enable_fp_fusion=False,
        num_stages=stages(
            q.device, shape.num_stages, 2 * KEYS * block_width * cache.k.itemsize,
            shape.rows * block_width * compute.itemsize,
        ),
        **overlap(q.device),
    )  # fmt: skip
    return rotate(out, wanted) if cache.packed else out
