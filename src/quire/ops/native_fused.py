"""The small operations on torch tensors, native: each means what its namesake in `reference` does.

Every tensor is on the CPU, of one dtype (float32, bfloat16 or float16) unless stated. Rows of x
may be apart: a slice of a wider tensor costs no copy. Results are new, contiguous tensors. Raises
ValueError for what does not fit, IndexError for a token, position or slot outside its table. A
row's bits depend on that row alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire import _native
from quire.core.config import Activation
from quire.ops.filters import FloatRow
from quire.ops.metadata import KVCache
from quire.ops.native import NativeKernels
from quire.ops.native_checks import (
    CACHE_CODES,
    check_cache,
    cos_sin_width,
    dense_rows,
    describe,
    floats,
    gain,
    indices,
    like,
    matrix,
    misfit,
    same,
    vector,
)
from quire.ops.reference import GATED
from quire.ops.sampling import TokenIds


class FusedKernels:
    """The small operations of one instruction set, on one pool of threads.

    Args:
        kernels: the instruction set.
        pool: threads that share the rows of large operations; None computes on the caller.
    """

    def __init__(self, kernels: NativeKernels, pool: _native.Pool | None = None) -> None:
        self._kernels = kernels.handle
        self._pool = pool if pool is not None else _native.Pool(1)

    @property
    def isa(self) -> str:
        """Name of the instruction set."""
        return self._kernels.isa

    def lookup(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Rows `ids` (int64 [T]) of `weight` [vocab, hidden] → [T, hidden]."""
        code, cols = matrix("weight", weight)
        rows = indices("ids", ids)
        y = weight.new_empty(rows, cols)
        _native.embedding(
            self._kernels, self._pool, code, y.data_ptr(), ids.data_ptr(), weight.data_ptr(),
            0, 0, rows, cols, cols, weight.stride(0), 0, weight.shape[0], 0,
        )  # fmt: skip
        return y

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y [..., cols], rounded to their dtype."""
        code, cols = floats("x", x)
        same("y", y, "x", x)
        out = like(x)
        x, x_stride = dense_rows(x, cols)
        y, y_stride = dense_rows(y, cols)
        _native.add(
            self._kernels, self._pool, code, out.data_ptr(), x.data_ptr(), y.data_ptr(),
            out.numel() // cols, cols, cols, x_stride, y_stride,
        )  # fmt: skip
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) · weight over the last dimension; rounded before and after `weight`, which is
        of x's dtype, or float32: then after it only."""
        code, cols = floats("x", x)
        wide = gain("weight", weight, x, cols)
        y = like(x)
        x, stride = dense_rows(x, cols)
        _native.rms_norm(
            self._kernels, self._pool, code, y.data_ptr(), x.data_ptr(), weight.data_ptr(),
            y.numel() // cols, cols, cols, stride, eps, wide,
        )  # fmt: skip
        return y

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual); the sum is rounded to the dtype."""
        code, cols = floats("x", x)
        same("residual", residual, "x", x)
        wide = gain("weight", weight, x, cols)
        y, total = like(x), like(x)
        x, x_stride = dense_rows(x, cols)
        residual, residual_stride = dense_rows(residual, cols)
        _native.add_rms_norm(
            self._kernels, self._pool, code, y.data_ptr(), total.data_ptr(), x.data_ptr(),
            residual.data_ptr(), weight.data_ptr(), y.numel() // cols, cols, cols, cols, x_stride,
            residual_stride, eps, wide,
        )  # fmt: skip
        return y, total

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Layer normalization over the last dimension, computed in float32, rounded once."""
        code, cols = floats("x", x)
        vector("weight", weight, x, cols)
        vector("bias", bias, x, cols)
        y = like(x)
        x, stride = dense_rows(x, cols)
        _native.layer_norm(
            self._kernels, self._pool, code, y.data_ptr(), x.data_ptr(), weight.data_ptr(),
            bias.data_ptr(), y.numel() // cols, cols, cols, stride, eps,
        )  # fmt: skip
        return y

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(layer_norm(x + residual), x + residual); the sum is rounded to the dtype."""
        code, cols = floats("x", x)
        same("residual", residual, "x", x)
        vector("weight", weight, x, cols)
        vector("bias", bias, x, cols)
        y, total = like(x), like(x)
        x, x_stride = dense_rows(x, cols)
        residual, residual_stride = dense_rows(residual, cols)
        _native.add_layer_norm(
            self._kernels, self._pool, code, y.data_ptr(), total.data_ptr(), x.data_ptr(),
            residual.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.numel() // cols, cols, cols,
            cols, x_stride, residual_stride, eps,
        )  # fmt: skip
        return y, total

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        """The function of that name; if it is gated, [..., 2 · width] → [..., width]."""
        if kind in GATED:
            return self._gated(getattr(_native, kind), x)
        return self._unary(getattr(_native, kind), x)

    def _gated(self, kernel: _native.Unary, gate_up: Tensor) -> Tensor:
        code, both = floats("gate_up", gate_up)
        if both % 2:
            raise ValueError(f"gate_up is {describe(gate_up)}; wanted an even last dimension")
        cols = both // 2
        y = gate_up.new_empty(*gate_up.shape[:-1], cols)
        x, stride = dense_rows(gate_up, both)
        kernel(
            self._kernels, self._pool, code, y.data_ptr(), x.data_ptr(), y.numel() // cols, cols,
            cols, stride,
        )  # fmt: skip
        return y

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """x · factor, the factor rounded to x's dtype as well."""
        return self._unary(_native.scale, x, torch.tensor(factor, dtype=x.dtype).item())

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap · tanh(x / cap)."""
        return self._unary(_native.softcap, x, cap)

    def _unary(self, kernel: Callable[..., None], x: Tensor, *parameter: float) -> Tensor:
        code, cols = floats("x", x)
        y = like(x)
        x, stride = dense_rows(x, cols)
        kernel(
            self._kernels, self._pool, code, y.data_ptr(), x.data_ptr(), y.numel() // cols, cols,
            cols, stride, *parameter,
        )  # fmt: skip
        return y

    def rope_kv_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        cache: KVCache,
        slot_mapping: Tensor,
        heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> Tensor:
        """What stands between the qkv product and attention, in one pass over its rows.

        Equal to the bit to splitting, `rms_norm` of q and k, rotation and storing. Norms wider than
        a head are computed first, in place.

        Args:
            qkv: [T, (heads + 2 · kv_heads) · head_dim]; q, then k, then v.
            positions: int64 [T].
            cos_sin: float32 [max_len, rotary_dim]; None does not turn.
            q_norm: weight of the norm (see `rms_norm`) of each head of q [head_dim], or of all
                [heads · head_dim]; None does not normalize.
            k_norm: the same for k, of the same dtype.
            eps: of the norms.
            cache: receives k and v; [blocks, kv_heads, block_size, head_dim] each, of qkv's
                dtype, bfloat16, or of 8 bits (see `reference.quantize_heads`).
            slot_mapping: int64 [T]; block · block_size + offset. Slots must differ.

        Returns:
            q, contiguous [T, heads, head_dim].
        """
        code, width = matrix("qkv", qkv)
        rows = qkv.shape[0]
        if width != (heads + 2 * kv_heads) * head_dim:
            raise ValueError(
                f"qkv is {describe(qkv)}; wanted ({heads} + 2 · {kv_heads}) · {head_dim} columns"
            )
        for name, index in (("positions", positions), ("slot_mapping", slot_mapping)):
            if indices(name, index) != rows:
                raise misfit(name, index, "qkv", qkv)
        check_cache(cache, qkv.dtype, kv_heads, head_dim)
        if q_norm is not None and len(q_norm) != head_dim:
            self._norm_part("q_norm", q_norm, eps, qkv, 0, heads * head_dim)
            q_norm = None
        if k_norm is not None and len(k_norm) != head_dim:
            self._norm_part("k_norm", k_norm, eps, qkv, heads * head_dim, kv_heads * head_dim)
            k_norm = None
        turn = rotary_dim = max_len = 0
        if cos_sin is not None:
            rotary_dim, max_len = cos_sin_width(cos_sin, head_dim), cos_sin.shape[0]
            turn = cos_sin.data_ptr()
        q_weight = k_weight = 0
        wide = False
        if q_norm is not None:
            wide = gain("q_norm", q_norm, qkv, head_dim)
            q_weight = q_norm.data_ptr()
        if k_norm is not None:
            if q_norm is not None and k_norm.dtype != q_norm.dtype:
                raise misfit("k_norm", k_norm, "q_norm", q_norm)
            wide = gain("k_norm", k_norm, qkv, head_dim)
            k_weight = k_norm.data_ptr()
        q = qkv.new_empty(rows, heads, head_dim)
        stride, base = qkv.stride(0), qkv.data_ptr()
        k = base + heads * head_dim * qkv.itemsize
        v = k + kv_heads * head_dim * qkv.itemsize
        blocks, block_size = cache.k.shape[0], cache.k.shape[2]
        block_stride, head_stride = cache.k.stride()[:2]
        _native.rope_kv_write(
            self._kernels, self._pool, code, q.data_ptr(), base, k, v, stride, stride, stride,
            positions.data_ptr(), turn, q_weight, k_weight, wide, cache.k.data_ptr(),
            cache.v.data_ptr(), *_held(cache), slot_mapping.data_ptr(), block_size,
            block_stride, head_stride, rows, heads, kv_heads, head_dim, rotary_dim, eps, max_len,
            blocks * block_size,
        )  # fmt: skip
        return q

    def _norm_part(
        self, name: str, weight: Tensor, eps: float, x: Tensor, first: int, cols: int
    ) -> None:
        """`rms_norm` of the columns [first, first + cols) of x, in place."""
        code, _ = matrix("qkv", x)
        wide = gain(name, weight, x, cols)
        address, stride = x.data_ptr() + first * x.itemsize, x.stride(0)
        _native.rms_norm(
            self._kernels, self._pool, code, address, address, weight.data_ptr(), len(x), cols,
            stride, stride, eps, wide,
        )  # fmt: skip

    def argmax(self, logits: Tensor) -> tuple[TokenIds, FloatRow]:
        """The largest of each row of float32 [rows, vocab] and its first index.

        Returns:
            new arrays: tokens int64 [rows], -1 where the row has NaN or +infinity or nothing but
            -infinity; peaks float32 [rows], NaN where the row has one.
        """
        code, cols = matrix("logits", logits)
        if code != _native.FLOAT32:
            raise ValueError(f"logits is {describe(logits)}; wanted float32")
        rows = logits.shape[0]
        tokens, peaks = np.empty(rows, np.int64), np.empty(rows, np.float32)
        _native.argmax(
            self._kernels, self._pool, _address(tokens), _address(peaks), logits.data_ptr(),
            rows, cols, logits.stride(0),
        )  # fmt: skip
        return tokens, peaks


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _held(cache: KVCache) -> tuple[int, int, int, float, float]:
    """How the cache holds elements: its dtype, addresses of the scales of k and v (0 where there
    are none), and units."""
    k_scale = 0 if cache.k_scale is None else cache.k_scale.data_ptr()
    v_scale = 0 if cache.v_scale is None else cache.v_scale.data_ptr()
    return CACHE_CODES[cache.k.dtype], k_scale, v_scale, cache.k_unit, cache.v_unit
