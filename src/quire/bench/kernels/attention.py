"""Attention over a paged cache, and what writes the cache, at a model's shapes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.bench.kernels.case import Case, Variant, copies, noise
from quire.bench.kernels.cases import Cases, Setting, rotated
from quire.ops.memory import empty
from quire.ops.metadata import AttentionMetadata, KVCache, cache_dtype

_LEAST_PREFILL = 16


def attention(s: Setting) -> Cases:
    """Decode: a token each of `rows` sequences. Prefill: `rows` tokens of one prompt."""
    for context in s.contexts:
        yield [_attend(s, "decode", r, 1, context) for r in s.rows if r <= s.max_num_seqs]
    yield [_attend(s, "prefill", 1, r, r) for r in s.rows if r >= _LEAST_PREFILL]


def _attend(s: Setting, name: str, sequences: int, new: int, context: int) -> Case:
    """`sequences`, each of `context` tokens in scattered blocks, the last `new` of them queries."""
    m, dtype = s.model, s.variant.torch_dtype
    heads, kv_heads, dim = m.num_attention_heads, m.num_key_value_heads, m.head_dim
    window = m.window(0)
    caches, meta = _filled(s, sequences, new, context)
    q = rotated(dtype, sequences * new, heads, dim)
    # Query i of a sequence, counted from its end, sees all but i keys, but for the window.
    pairs = sequences * sum(min(context - i, window or context) for i in range(new))
    seen = sequences * min(context, (window or context) + new - 1)
    slots = caches[0].k.shape[0] * s.block_size
    kv_bytes = _nbytes(caches[0])
    dense = noise((2, sequences, kv_heads, context, dim), dtype) if s.with_torch else None

    def plain(i: int) -> Tensor:
        assert dense is not None
        queries = q[i % len(q)].view(sequences, new, heads, dim).transpose(1, 2)
        return F.scaled_dot_product_attention(
            queries, dense[0], dense[1], is_causal=new > 1, enable_gqa=heads != kv_heads
        )

    return s.case(
        "attention", name, f"{heads}/{kv_heads}x{dim} ctx {context}", sequences * new,
        lambda i: s.ops.paged_attention(
            q[i % len(q)], caches[i % len(caches)], meta, dim**-0.5, window
        ),
        plain,
        flops=4 * pairs * heads * dim, moved_bytes=kv_bytes * seen // slots + 2 * q[0].nbytes,
        rotated_bytes=kv_bytes * len(caches),
    )  # fmt: skip


def rope_kv_write(s: Setting) -> Cases:
    """Norms of q and k, rotation, KV write: what stands between the qkv product and attention."""
    m, dtype = s.model, s.variant.torch_dtype
    heads, kv_heads, dim = m.num_attention_heads, m.num_key_value_heads, m.head_dim
    qk_norm = noise((dim,), dtype) if m.qk_norm else None

    def case(rows: int) -> Case:
        caches, meta = _filled(s, 1, rows, rows)
        positions = torch.arange(rows)
        cos_sin = noise((rows, m.rope.rotary_dim), torch.float32) if m.rope else None
        qkv = rotated(dtype, rows, (heads + 2 * kv_heads) * dim)
        n, unit = len(qkv), qkv[0].nbytes
        return s.case(
            "rope_kv_write", "rope_kv_write", f"{heads}/{kv_heads}x{dim}", rows,
            lambda i: s.ops.rope_kv_write(
                qkv[i % n], positions, cos_sin, qk_norm, qk_norm, m.norm_eps,
                caches[i % len(caches)], meta.slot_mapping, heads, kv_heads, dim,
            ),
            None,
            moved_bytes=2 * unit, rotated_bytes=n * unit,
        )  # fmt: skip

    yield [case(rows) for rows in s.rows]


def _filled(
    s: Setting, sequences: int, new: int, context: int
) -> tuple[list[KVCache], AttentionMetadata]:
    """Layers of a cache that outgrow the CPU's, and the metadata of a batch in scattered blocks."""
    size, m = s.block_size, s.model
    each = -(-context // size)
    first = _random_cache((sequences * each, m.num_key_value_heads, size, m.head_dim), s.variant)
    caches = [first, *(_copy(first) for _ in range(copies(_nbytes(first)) - 1))]
    tables = torch.randperm(sequences * each).view(sequences, each).int()
    slots = (tables.long()[:, :, None] * size + torch.arange(size)).flatten(1)
    return caches, AttentionMetadata(
        query_start_loc=torch.arange(0, (sequences + 1) * new, new, dtype=torch.int32),
        seq_lens=torch.full((sequences,), context, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=slots[:, context - new : context].flatten(),
        num_seqs=sequences,
        block_size=size,
    )


def _random_cache(shape: tuple[int, int, int, int], variant: Variant) -> KVCache:
    if variant.kv_cache_dtype == "int8":
        k, v = (
            _placed((32 * noise(shape, torch.float32)).clamp(-127, 127).to(torch.int8))
            for _ in range(2)
        )
        k_scale, v_scale = (noise(shape[:3], torch.bfloat16).abs() / 32 for _ in range(2))
        return KVCache(k, v, k_scale, v_scale)
    name = variant.kv_cache_dtype
    dtype = variant.torch_dtype if name in (None, "auto") else cache_dtype(name)
    k, v = (_placed(noise(shape, torch.float32).to(dtype)) for _ in range(2))
    return KVCache(k, v)


def _copy(cache: KVCache) -> KVCache:
    k_scale, v_scale = (
        None if scale is None else scale.clone() for scale in (cache.k_scale, cache.v_scale)
    )
    return cache._replace(k=_placed(cache.k), v=_placed(cache.v), k_scale=k_scale, v_scale=v_scale)


def _placed(t: Tensor) -> Tensor:
    """A copy in such memory as an engine's KV cache has."""
    return empty(tuple(t.shape), t.dtype).copy_(t)


def _nbytes(cache: KVCache) -> int:
    return sum(part.nbytes for part in cache.tensors)
