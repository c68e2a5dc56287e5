"""Launches of latent attention and of what writes its cache."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.torch_ops import latent as plain
from quire.ops.triton import attention, launch, tables
from quire.ops.triton.kernels import latent as kernels
from quire.ops.triton.launch import COMPUTE, overlap, power_of_two
from quire.ops.triton.tuning import chosen

ROWS = 64
"""Rows of a tile: heads, and tokens where a token has fewer."""
STAGES = 2
LARGE = 217 << 10
"""Shared memory that holds two tiles of 64 keys: half the reads of queries of tiles of 32."""
SMALL = 128 << 10
"""Shared memory that is too small for tiles of 64 rows."""


def supported(cache: KVCache[Tensor], rope: int) -> bool:
    """Return whether the kernels read this cache."""
    return rope > 0 and not cache.packed and attention.supported(cache)


def latent_kv_write(
    q: Tensor,
    kv: Tensor,
    positions: Tensor,
    cos_sin: Tensor | None,
    gain: Tensor,
    eps: float,
    cache: KVCache[Tensor],
    slot_mapping: Tensor,
    heads: int,
) -> Tensor:
    """See `torch_ops.latent.latent_kv_write`."""
    rope, columns = kv.shape[1] - len(gain), kv.shape[1]
    if cos_sin is None or not supported(cache, rope):
        return plain.latent_kv_write(
            q, kv, positions, cos_sin, gain, eps, cache, slot_mapping, heads
        )
    width = q.shape[1] // heads
    out = torch.empty((len(q), heads, width), dtype=q.dtype, device=q.device)
    if len(q):
        kernels.write[(len(q), heads + 1)](
            q, kv, positions, cos_sin, gain, eps, cache.k, cache.k_scale, cache.k_unit,
            attention.most(cache), slot_mapping, out, q.stride(0), kv.stride(0), heads,
            width=width, rope=rope, latent=columns - rope, kind=attention.stored(cache, 0)["kind"],
            block=power_of_two(max(width, columns)), num_warps=2, enable_fp_fusion=False,
            **overlap(q.device),
        )  # fmt: skip
    return out


def latent_attention(
    q: Tensor, q_rope: Tensor, cache: KVCache[Tensor], meta: AttentionMetadata[Tensor], scale: float
) -> Tensor:
    """See `torch_ops.latent.latent_attention`."""
    heads, latent = q.shape[1:]
    block_size, columns = cache.k.shape[2:]
    rope = columns - latent
    if not supported(cache, rope):
        return plain.latent_attention(q, q_rope, cache, meta, scale)
    # A tile of latents must fit into a processor's shared memory.
    room = launch.card(q.device).shared
    wide = q.dtype == torch.float32 or room < SMALL
    rows, keys = (16, 16) if wide else (ROWS, 64 if room >= LARGE else 32)
    stages = 1 if wide else STAGES
    block_heads = min(power_of_two(heads), rows)
    tiles = tables.table(meta, q.device, tables.tiles, rows // block_heads)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not len(tiles):
        return out
    head_blocks = -(-heads // block_heads)
    sizes = chosen(q.device).heads(heads, 1, columns, attention.cache_name(cache))
    waves = max(sizes.waves, 0) if sizes.waves else attention.WAVES
    split = attention.Split.of(
        tables.longest(meta), len(tiles) * head_blocks, (len(q), heads, latent), q.device, waves
    )
    compute = q.dtype if cache.k.dtype == q.dtype or cache.k.itemsize == 1 else torch.float32
    block_latent = max(power_of_two(latent), 16)
    kernels.attention[(len(tiles), head_blocks, split.programs)](
        q, q_rope, cache.k, cache.k_scale, cache.k_unit, meta.block_tables, tiles, out,
        *split.parts, scale, split.segments, heads, *q.stride()[:2], *q_rope.stride()[:2],
        meta.block_tables.stride(0),
        block_size=block_size, rope=rope, latent=latent, rows=rows, block_heads=block_heads,
        block_rope=max(power_of_two(rope), 16), block_latent=block_latent, keys=keys,
        segment=attention.SEGMENT, split=split.on, lift=attention.lift(cache),
        compute=COMPUTE[compute], num_warps=8, num_stages=sizes.stages or stages,
        enable_fp_fusion=False, **overlap(q.device),
    )  # fmt: skip
    if split.on:
        kernels.merge[(len(tiles), heads)](
            tiles, out, cache.k_unit / attention.lift(cache), *split.parts, split.segments, heads,
            latent=latent, block_latent=block_latent, segment=attention.SEGMENT,
            enable_fp_fusion=False, **overlap(q.device),
        )  # fmt: skip
    return out
