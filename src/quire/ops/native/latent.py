"""Attention over latents on the native kernels; `torch_ops.latent` documents each op in full."""

from __future__ import annotations

import numpy as np

from quire import _native
from quire.core.dtypes import HostArray
from quire.ops.array import address
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.native.attention import SPLIT, batch_view, block_dense, check_batch
from quire.ops.native.checks import (
    CACHE_CODES,
    DTYPE_CODES,
    cache_view,
    check_cache,
    check_scales,
    contiguous,
    describe,
    indices,
    no_heads_of,
    view,
)
from quire.ops.native.gemm import packed_linear
from quire.ops.native.kernels import OnPool
from quire.ops.weights import LinearWeight


class LatentKernels(OnPool):
    """The ops of attention over latents."""

    def latent_kv_write(
        self,
        q: HostArray,
        kv: HostArray,
        positions: HostArray,
        cos_sin: HostArray | None,
        gain: HostArray,
        eps: float,
        cache: KVCache[HostArray],
        slot_mapping: HostArray,
        heads: int,
    ) -> HostArray:
        """`Ops.latent_kv_write`; changes q and kv.

        Raises:
            ValueError: dtypes, shapes or layouts that do not fit.
            IndexError: a position or slot outside its table.
        """
        queries, keys = contiguous("q", q, 2), contiguous("kv", kv, 2)
        width, rope = q.shape[1] // heads, kv.shape[1] - len(gain)
        check_cache(cache, kv.dtype, 1, kv.shape[1])
        fits = cache.v is None and q.shape == (len(kv), heads * width) and rope > 0
        if not fits or q.dtype != kv.dtype:
            raise ValueError(f"q is {describe(q)}, kv is {describe(kv)}, with {heads} heads")
        latent = view(kv[:, rope:])
        _native.rms_norm(
            self._kernels, self._pool, latent, latent, contiguous("gain", gain, 1), eps
        )
        at = indices("positions", positions)
        table = None if cos_sin is None else contiguous("cos_sin", cos_sin, 2)
        slots = indices("slot_mapping", slot_mapping)
        no_heads = _native.Matrix(address(kv), len(kv), 0, 0, DTYPE_CODES[kv.dtype])
        no_cache = no_heads_of(cache, kv.dtype, width)
        for out, rows, into in ((no_heads, keys, cache_view(cache)), (queries, queries, no_cache)):
            _native.rope_kv_write(
                self._kernels, self._pool, out, rows, at, table, None, None, None, eps, into, slots
            )
        return q.reshape(len(q), heads, width)

    def head_linear(self, x: HostArray, packed: LinearWeight, first: int = 0) -> HostArray:
        """`Ops.head_linear`. A row's bits do not depend on the others.

        Raises ValueError for dtypes, shapes and layouts that do not fit.
        """
        weight, rows = packed_linear(packed), contiguous("x", x.reshape(len(x), -1), 2)
        y = np.empty((len(x), weight.experts, weight.columns), x.dtype)
        _native.head_linear(self._kernels, self._pool, weight.packed, _rows(y), rows, first)
        return y

    def latent_attention(
        self,
        q: HostArray,
        q_rope: HostArray,
        cache: KVCache[HostArray],
        meta: AttentionMetadata[HostArray],
        scale: float,
        *,
        split: bool | None = None,
    ) -> HostArray:
        """`Ops.latent_attention`.

        A token's result is the same to the bit in every batch and chunking and with any number of
        threads, on one instruction set.

        Args:
            split: whether threads share the keys of one sequence; None is where it pays.

        Raises ValueError for dtypes, shapes and layouts that do not fit.
        """
        if cache.v is not None or cache.k.dtype not in CACHE_CODES or not block_dense(cache.k):
            raise ValueError(f"the cache is {describe(cache.k)}; wanted contiguous rows, and no v")
        check_scales(cache)
        check_batch(meta, cache.k.shape[2])
        if not scale * cache.k_unit > 0:
            raise ValueError(f"scale is {scale}; it must be positive")
        contiguous("q", q, 3), contiguous("q_rope", q_rope, 3)
        out = np.empty(q.shape, q.dtype)
        _native.latent_attention(
            self._kernels, self._pool, _rows(out), _rows(q), _rows(q_rope), cache_view(cache),
            batch_view(meta), q.shape[1], scale, SPLIT[split],
        )  # fmt: skip
        return out


def _rows(x: HostArray) -> _native.Matrix:
    """Return [T, heads, width] as a row per token."""
    return view(x.reshape(len(x), x.shape[1] * x.shape[2]))
