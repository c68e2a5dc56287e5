"""Cases of attention and KV writes over a paged cache, at a model's shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.bench.kernels.case import Case, noise
from quire.bench.kernels.cases import Cases, Setting
from quire.core.dtypes import BFLOAT16, FLOAT32, HostArray, dtype_of
from quire.core.layers import LatentConfig
from quire.ops.array import Array
from quire.ops.metadata import AttentionMetadata, AttentionRules, Heads, KVCache

_LEAST_PREFILL = 16


def attention(s: Setting) -> Cases:
    """Yield decode (one token per sequence, `rows` sequences) and prefill (`rows` tokens)."""
    for context in s.contexts:
        yield [_attend(s, "decode", r, 1, context) for r in s.rows if r <= s.max_num_seqs]
    yield [_attend(s, "prefill", 1, r, r) for r in s.rows if r >= _LEAST_PREFILL]


def _attend(s: Setting, name: str, sequences: int, new: int, context: int) -> Case:
    """Return a case of `sequences` of `context` tokens in scattered blocks, with the last `new`
    tokens of each as queries."""
    m, dtype = s.model, s.variant.numpy_dtype
    if m.latent is not None:
        return _attend_latents(s, m.latent, name, sequences, new, context)
    heads, kv_heads, dim = m.num_attention_heads, m.num_key_value_heads, m.head_dim
    window = m.window(0)
    caches, meta = _filled(s, sequences, new, context)
    q = s.rotated(dtype, sequences * new, heads, dim)
    # Query i, counted from the sequence's end, sees context - i keys, or those in the window.
    pairs = sequences * sum(min(context - i, window or context) for i in range(new))
    seen = sequences * min(context, (window or context) + new - 1)
    slots = caches[0].k.shape[0] * s.block_size
    kv_bytes = _nbytes(caches[0])
    shape = (sequences, kv_heads, context, dim) if s.torch is not None else (0,)
    dense = [s.noise(dtype, *shape) for _ in range(2)]
    return s.case(
        "attention", name, f"{heads}/{kv_heads}x{dim} ctx {context}", sequences * new,
        lambda i: s.ops.paged_attention(
            q[i % len(q)], caches[i % len(caches)], meta, AttentionRules(dim**-0.5, window)
        ),
        lambda torch: torch.attention(q, sequences, *dense),
        flops=4 * pairs * heads * dim, moved_bytes=kv_bytes * seen // slots + 2 * q[0].nbytes,
        rotated_bytes=kv_bytes * len(caches),
    )  # fmt: skip


def _attend_latents(
    s: Setting, latent: LatentConfig, name: str, sequences: int, new: int, context: int
) -> Case:
    dtype, heads, rows = s.variant.numpy_dtype, s.model.num_attention_heads, sequences * new
    caches, meta = _filled(s, sequences, new, context)
    q = s.rotated(dtype, rows, heads, latent.rank)
    turned = s.noise(dtype, rows, heads, latent.head)
    pairs = sequences * sum(context - i for i in range(new))
    slots = caches[0].k.shape[0] * s.block_size
    kv_bytes, scale = _nbytes(caches[0]), latent.head**-0.5
    return s.case(
        "attention", name, f"{heads}x{latent.row} latent ctx {context}", rows,
        lambda i: s.ops.latent_attention(
            q[i % len(q)], turned, caches[i % len(caches)], meta, scale
        ),
        None,
        flops=2 * pairs * heads * (latent.row + latent.rank),
        moved_bytes=kv_bytes * sequences * context // slots + 2 * q[0].nbytes,
        rotated_bytes=kv_bytes * len(caches),
    )  # fmt: skip


def rope_kv_write(s: Setting) -> Cases:
    """Norms of q and k, rotation, KV write: the steps between the qkv product and attention."""
    if s.model.latent is not None:
        return
    m, dtype = s.model, s.variant.numpy_dtype
    qk_norm = s.noise(dtype, m.head_dim) if m.qk_norm else None
    heads: Heads[Array] = Heads(
        m.num_attention_heads, m.num_key_value_heads, m.head_dim, qk_norm, qk_norm, eps=m.norm_eps
    )

    def case(rows: int) -> Case:
        caches, meta = _filled(s, 1, rows, rows)
        positions = s.ops.array(np.arange(rows))
        cos_sin = s.noise(FLOAT32, rows, m.rope.rotary_dim) if m.rope else None
        qkv = s.rotated(dtype, rows, (heads.q + 2 * heads.kv) * heads.width)
        n, unit = len(qkv), qkv[0].nbytes
        return s.case(
            "rope_kv_write", "rope_kv_write", f"{heads.q}/{heads.kv}x{heads.width}", rows,
            lambda i: s.ops.rope_kv_write(
                qkv[i % n], positions, cos_sin, caches[i % len(caches)], meta.slot_mapping, heads
            ),
            None,
            moved_bytes=2 * unit, rotated_bytes=n * unit,
        )  # fmt: skip

    yield [case(rows) for rows in s.rows]


def _filled(
    s: Setting, sequences: int, new: int, context: int
) -> tuple[list[KVCache], AttentionMetadata]:
    """Return KV caches larger than the CPU's caches, and metadata with scattered blocks."""
    size, m = s.block_size, s.model
    each = -(-context // size)
    make = _random_cache(s, (sequences * each, m.num_key_value_heads, size, m.head_dim))
    first = make()
    caches = [first, *(make() for _ in range(s.copies(_nbytes(first)) - 1))]
    tables = s.random.permutation(sequences * each).astype(np.int32).reshape(sequences, each)
    slots = (tables[:, :, np.newaxis].astype(np.int64) * size + np.arange(size)).reshape(
        sequences, -1
    )
    starts = np.arange(0, (sequences + 1) * new, new, dtype=np.int32)
    return caches, AttentionMetadata(
        query_start_loc=starts,
        seq_lens=np.full(sequences, context, np.int32),
        block_tables=s.ops.array(tables),
        slot_mapping=s.ops.array(slots[:, context - new : context].reshape(-1)),
        num_seqs=sequences,
        block_size=size,
    )


def _random_cache(s: Setting, shape: tuple[int, int, int, int]) -> Callable[[], KVCache]:
    """Return a function that makes copies of a layer's cache."""
    k, v = (noise(s.random, shape, FLOAT32) for _ in range(2))
    name, latent = s.variant.kv_cache_dtype, s.model.latent is not None
    if name == "int4":
        *slots, width = shape
        shapes = (*slots, width // 2), (*slots, width // 2), slots, slots, (*slots, width // 8)
        parts = [s.random.integers(160, size=part, dtype=np.uint8) for part in shapes]

        def packed() -> KVCache:
            k, v, k_scale, v_scale, k_signs = (_placed(s, part) for part in parts)
            return KVCache(k, v, k_scale, v_scale, k_signs)

        return packed
    if name == "int8":
        k, v = (np.clip(32 * each, -127, 127).astype(np.int8) for each in (k, v))
        k_scale, v_scale = [
            np.abs(noise(s.random, shape[:3], BFLOAT16)) / BFLOAT16.type(32) for _ in "kv"
        ]
        if latent:
            return lambda: KVCache(_placed(s, k), None, _placed(s, k_scale))
        return lambda: KVCache(
            _placed(s, k), _placed(s, v), _placed(s, k_scale), _placed(s, v_scale)
        )
    own = s.variant.numpy_dtype
    dtype = own if name in (None, "auto") else dtype_of(name)
    k, v = k.astype(dtype), v.astype(dtype)
    return lambda: KVCache(_placed(s, k), None if latent else _placed(s, v))


def _placed(s: Setting, values: HostArray) -> Array:
    """Copy into memory like that of an engine's KV cache."""
    if not s.ops.device.is_host:
        return s.ops.array(values)
    placed = s.ops.empty(values.shape, values.dtype)
    s.ops.numpy(placed)[...] = values
    return placed


def _nbytes(cache: KVCache) -> int:
    return sum(part.nbytes for part in cache.tensors)
