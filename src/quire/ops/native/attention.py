"""Paged attention on the native CPU kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire import _native
from quire.core.dtypes import FLOAT32, DType, HostArray
from quire.ops.array import address
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.native.checks import (
    CACHE_CODES,
    DTYPE_CODES,
    INT32,
    cache_view,
    check_scales,
    describe,
)
from quire.ops.native.kernels import OnPool
from quire.ops.tuning import AttentionTuning

_UNTUNED = AttentionTuning()
SPLIT = {None: 0, False: 1, True: 2}


def _untuned(*_: object) -> AttentionTuning:
    return _UNTUNED


class AttentionKernels(OnPool):
    """The op of attention over a paged cache."""

    _tuned: Callable[[int, int, int, DType], AttentionTuning] = staticmethod(_untuned)
    """How work is cut, by heads of queries and of keys, their width, and the cache's dtype."""

    def paged_attention(
        self,
        q: HostArray,
        cache: KVCache[HostArray],
        meta: AttentionMetadata[HostArray],
        rules: AttentionRules[HostArray],
        *,
        out: HostArray | None = None,
        split: bool | None = None,
        tuning: AttentionTuning | None = None,
    ) -> HostArray:
        """`Ops.paged_attention`, on all threads of the pool.

        On one instruction set, a token's result has the same bits in every batch and chunking and
        with any number of threads. Sinks are float32.

        Args:
            q: [T, num_heads, head_dim]; a token's heads lie together.
            cache: k and v of one dtype, which may differ from q's, or of at most 8 bits with
                scales (integers always); each block contiguous, of any size.
            out: takes the result, if given; like q, and apart from it.
            split: whether threads share the keys of one sequence and head; None is where it pays.
            tuning: how the work is cut, which changes no result; None is what was tuned.

        Returns:
            [T, num_heads, head_dim] of q's dtype.

        Raises:
            ValueError: dtypes or layouts that the kernels do not take, or shapes that do not fit.
        """
        _check(q, cache, meta, rules)
        k = cache.k
        if out is None:
            out = np.empty(q.shape, q.dtype)
        elif out.shape != q.shape or out.dtype != q.dtype or not _heads_together(out):
            raise ValueError(f"out is {describe(out)}, but q is {describe(q)}")
        tuning = tuning or self._tuned(q.shape[1], k.shape[1], q.shape[2], k.dtype)
        _native.paged_attention(
            self._kernels,
            self._pool,
            _tokens(out),
            _tokens(q),
            cache_view(cache),
            batch_view(meta, whole=rules.whole),
            rules.window or 0,
            rules.causal,
            rules.scale,
            rules.softcap or 0.0,
            SPLIT[split],
            (tuning.thread_tasks, tuning.tall_rows, tuning.ahead_bytes),
            0 if rules.sinks is None else address(rules.sinks),
            rules.chunked,
        )
        return out


def _check(
    q: HostArray,
    cache: KVCache[HostArray],
    meta: AttentionMetadata[HostArray],
    rules: AttentionRules[HostArray],
) -> None:
    """Raise ValueError for arrays that the kernels would misread."""
    k, v = cache.k, cache.v
    heads, head_dim = q.shape[1], q.shape[2]
    kv_heads, block_size = k.shape[1], k.shape[2]
    fits = q.dtype in DTYPE_CODES and heads % kv_heads == 0
    if not fits or not _heads_together(q):
        raise ValueError(f"q is {describe(q)}, with {kv_heads} kv heads, blocks of {block_size}")
    if v is None:
        raise ValueError(f"k is {describe(k)}, and there is no v")
    if k.shape != v.shape or cache.head_dim != head_dim or k.dtype != v.dtype:
        raise ValueError(f"k is {describe(k)}, v is {describe(v)}, q is {describe(q)}")
    if k.dtype not in CACHE_CODES:
        raise ValueError(f"the cache is {describe(k)}; wanted floats, int8 or int4")
    check_scales(cache)
    if not block_dense(k) or not block_dense(v):
        raise ValueError(f"a block of k or v is not contiguous: {describe(k)}, {describe(v)}")
    check_batch(meta, block_size)
    scale, window, softcap, _, sinks, *_ = rules
    if not scale * cache.k_unit > 0 or (window is not None and window < 1):
        raise ValueError(f"scale is {scale} and window {window}; both must be positive")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is {softcap}; it must be positive")
    if sinks is not None and (sinks.shape != (heads,) or sinks.dtype != FLOAT32):
        raise ValueError(f"sinks is {describe(sinks)}, but there are {heads} heads")


def check_batch(meta: AttentionMetadata[HostArray], block_size: int) -> None:
    """Raise ValueError if the batch does not fit a cache with blocks of `block_size` tokens."""
    if meta.block_size != block_size:
        raise ValueError(f"blocks of {block_size} tokens, but the batch says {meta.block_size}")
    whole = () if meta.whole is None else (meta.whole,)
    for index in (meta.query_start_loc, meta.seq_lens, meta.block_tables, *whole):
        if index.dtype != INT32 or index.strides[-1] != index.itemsize:
            raise ValueError(f"the batch's index is {describe(index)}; wanted dense int32")


def _tokens(t: HostArray) -> _native.Matrix:
    """Return [T, heads, head_dim] as one row per token."""
    rows, heads, width = t.shape
    return _native.Matrix(
        address(t), rows, heads * width, t.strides[0] // t.itemsize, DTYPE_CODES[t.dtype]
    )


def batch_view(meta: AttentionMetadata[HostArray], *, whole: bool = True) -> _native.Sequences:
    """Return the batch's sequences as the kernels see them; without `whole`, none sees ahead."""
    return _native.Sequences(
        address(meta.query_start_loc),
        address(meta.seq_lens),
        address(meta.block_tables),
        meta.num_seqs,
        meta.block_tables.strides[0] // 4,
        0 if meta.whole is None or not whole else address(meta.whole),
    )


def _heads_together(t: HostArray) -> bool:
    """Return whether a token's heads are contiguous."""
    size = t.itemsize
    if t.size == 0:
        return True
    return t.strides[2] == size and (t.strides[1] == t.shape[2] * size or t.shape[1] == 1)


def block_dense(part: HostArray) -> bool:
    """Return whether a block of the cache is contiguous."""
    _, heads, size, width = part.shape
    row = width * part.itemsize
    return part.strides[2:] == (row, part.itemsize) and (
        part.strides[1] == size * row or heads == 1
    )
