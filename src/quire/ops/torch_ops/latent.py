"""Attention over latents in plain torch (multi-head latent attention, DeepSeek-AI 2024).

A token's keys and values are products of each head's matrices and one latent vector c: k = W_k c
and v = W_v c. Both products move to the other side of attention:

    q · k = q · (W_k c) = (W_kᵀ q) · c          sum of w v = W_v (sum of w c)

So the cache holds c, and one key that all heads share for positions: a row [rope | latent].
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.torch_ops.paged_attention import one_sequence
from quire.ops.torch_ops.reference import LINEAR_ROWS, dense_weight, rms_norm, rotary, write_kv
from quire.ops.weights import LinearWeight


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
    """Normalize latents, rotate q and keys, and store them; return q for attention.

    Normalizes the latent, turns the rope parts of q and of kv by `cos_sin` (see `rotary`), stores
    [rope | latent] and returns q [T, heads, width]. May change q and kv.

    Args:
        q: [T, heads · width]; a head begins with its rope part.
        kv: [T, rope + latent].
        cos_sin: float32 [max_len, rope]; None turns nothing.
        gain: of the latent's RMSNorm.
        cache: of latents: k [blocks, 1, block_size, rope + latent].
    """
    rope = kv.shape[1] - len(gain)
    latent = rms_norm(kv[:, rope:], gain, eps)
    key = torch.cat((kv[:, :rope], latent), dim=-1).unsqueeze(1)
    queries = q.view(len(q), heads, -1)
    if cos_sin is not None:
        queries, key = rotary(queries, key, positions, cos_sin)
    write_kv(key, None, cache, slot_mapping)
    return queries


def head_linear(x: Tensor, packed: LinearWeight, first: int = 0) -> Tensor:
    """Return each head's own product x[t, h, first : first + k] · weight[h]ᵀ.

    Args:
        x: [T, heads, width].
        packed: as `pack_linear` made it of [heads · n, k], for as many `experts` as heads.

    Returns:
        [T, heads, n] of x's dtype; tile by tile, as `linear`.
    """
    dense = dense_weight(packed)
    weight = dense.weight.view(dense.experts, -1, dense.weight.shape[1]).transpose(1, 2)
    tokens = x.shape[0]
    padded = x.new_zeros(-(-tokens // LINEAR_ROWS) * LINEAR_ROWS, dense.experts, weight.shape[1])
    padded[:tokens] = x[..., first : first + weight.shape[1]]
    tiles = [torch.bmm(tile.transpose(0, 1), weight) for tile in padded.split(LINEAR_ROWS)]
    return torch.cat(tiles, dim=1)[:, :tokens].transpose(0, 1).contiguous()


def latent_attention(
    q: Tensor, q_rope: Tensor, cache: KVCache[Tensor], meta: AttentionMetadata[Tensor], scale: float
) -> Tensor:
    """Return the attention of each new token and head over its sequence's cached latents.

    Args:
        q: [T, heads, latent]: queries times the heads' key matrices.
        q_rope: [T, heads, width], of which the first elements are the turned rope part.
        cache: of latents; all heads read the same rows.
        scale: multiplies the product of [q_rope | q] and a row.

    Returns:
        [T, heads, latent] of q's dtype: sums of latents, in float32 rounded once.
    """
    rope = cache.k.shape[3] - q.shape[2]
    queries = torch.cat((q_rope[..., :rope], q), dim=-1)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for span, table in zip(meta.spans, meta.block_tables, strict=False):
        one_sequence(queries, out, cache, span, table, AttentionRules(scale))
    return out
