"""The small operations on torch tensors, native: each means what its namesake in `reference` does.

Every tensor is on the CPU, of one dtype (float32, bfloat16 or float16) unless stated. Rows of x
may be apart: a slice of a wider tensor costs no copy. Results are new, contiguous tensors. Raises
ValueError for what does not fit, IndexError for a token, position or slot outside its table. A
row's bits depend on that row alone.
"""

from __future__ import annotations

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
    cache_view,
    check_cache,
    contiguous,
    dense,
    describe,
    indices,
    like,
    matrix,
    misfit,
    view,
)
from quire.ops.sample_row import TokenIds
from quire.ops.weights import GATED, Scores


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
        rows, table = indices("ids", ids), matrix("weight", weight)
        y = weight.new_empty(ids.numel(), weight.shape[1])
        _native.embedding(self._pool, None, view(y), rows, table, None, 0, 0)
        return y

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y [..., cols], rounded to their dtype."""
        x_rows, y_rows, out = dense("x", x), dense("y", y), like(x)
        _native.add(self._kernels, self._pool, view(out), view(x_rows), view(y_rows))
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) · weight over the last dimension; rounded before and after `weight`, which is
        of x's dtype, or float32: then after it only."""
        rows, gain, y = dense("x", x), contiguous("weight", weight, 1), like(x)
        _native.rms_norm(self._kernels, self._pool, view(y), view(rows), gain, eps)
        return y

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual); the sum is rounded to the dtype."""
        rows, others = dense("x", x), dense("residual", residual)
        gain, y, total = contiguous("weight", weight, 1), like(x), like(x)
        _native.add_rms_norm(
            self._kernels, self._pool, view(y), view(total), view(rows), view(others), gain, eps
        )
        return y, total

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Layer normalization over the last dimension, computed in float32, rounded once."""
        rows, y = dense("x", x), like(x)
        gain, offset = contiguous("weight", weight, 1), contiguous("bias", bias, 1)
        _native.layer_norm(self._kernels, self._pool, view(y), view(rows), gain, offset, eps)
        return y

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(layer_norm(x + residual), x + residual); the sum is rounded to the dtype."""
        rows, others = dense("x", x), dense("residual", residual)
        gain, offset = contiguous("weight", weight, 1), contiguous("bias", bias, 1)
        y, total = like(x), like(x)
        _native.add_layer_norm(
            self._kernels, self._pool, view(y), view(total), view(rows), view(others), gain,
            offset, eps,
        )  # fmt: skip
        return y, total

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        """The function of that name; if it is gated, [..., 2 · width] → [..., width]."""
        rows = dense("x", x)
        if kind not in GATED:
            y = like(x)
        elif rows.shape[1] % 2:
            raise ValueError(f"x is {describe(x)}; wanted an even last dimension")
        else:
            y = x.new_empty(*x.shape[:-1], rows.shape[1] // 2)
        code = _native.EPILOGUES[kind]
        _native.activation(self._kernels, self._pool, code, view(y), view(rows))
        return y

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """x · factor, the factor rounded to x's dtype as well."""
        rows, y = dense("x", x), like(x)
        factor = torch.tensor(factor, dtype=x.dtype).item()
        _native.scale(self._kernels, self._pool, view(y), view(rows), factor)
        return y

    def softcap(self, x: Tensor, cap: float) -> Tensor:
        """cap · tanh(x / cap)."""
        rows, y = dense("x", x), like(x)
        _native.softcap(self._kernels, self._pool, view(y), view(rows), cap)
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
        columns, rows = matrix("qkv", qkv), indices("positions", positions)
        check_cache(cache, qkv.dtype, kv_heads, head_dim)
        if q_norm is not None and len(q_norm) != head_dim:
            self._norm_part("q_norm", q_norm, eps, qkv, 0, heads * head_dim)
            q_norm = None
        if k_norm is not None and len(k_norm) != head_dim:
            self._norm_part("k_norm", k_norm, eps, qkv, heads * head_dim, kv_heads * head_dim)
            k_norm = None
        q = qkv.new_empty(qkv.shape[0], heads, head_dim)
        _native.rope_kv_write(
            self._kernels,
            self._pool,
            view(q.flatten(1)),
            columns,
            rows,
            None if cos_sin is None else contiguous("cos_sin", cos_sin, 2),
            None if q_norm is None else contiguous("q_norm", q_norm, 1),
            None if k_norm is None else contiguous("k_norm", k_norm, 1),
            eps,
            cache_view(cache),
            indices("slot_mapping", slot_mapping),
        )
        return q

    def _norm_part(
        self, name: str, weight: Tensor, eps: float, x: Tensor, first: int, cols: int
    ) -> None:
        """`rms_norm` of the columns [first, first + cols) of x, in place."""
        gain, part = contiguous(name, weight, 1), view(x[:, first : first + cols])
        if len(weight) != cols:
            raise misfit(name, weight, "qkv", x)
        _native.rms_norm(self._kernels, self._pool, part, part, gain, eps)

    def argmax(self, logits: Tensor) -> tuple[TokenIds, FloatRow]:
        """The largest of each row of float32 [rows, vocab] and its first index.

        Returns:
            new arrays: tokens int64 [rows], -1 where the row has NaN or +infinity or nothing but
            -infinity; peaks float32 [rows], NaN where the row has one.
        """
        given, rows = matrix("logits", logits), logits.shape[0]
        tokens, peaks = np.empty(rows, np.int64), np.empty(rows, np.float32)
        _native.argmax(self._kernels, self._pool, _address(tokens), _address(peaks), given)
        return tokens, peaks

    def route(
        self, logits: Tensor, top_k: int, scores: Scores = "softmax", renormalize: bool = True
    ) -> tuple[Tensor, Tensor]:
        """`Ops.route`. A row's bits do not depend on the others."""
        given, rows = matrix("logits", logits), logits.shape[0]
        if not 1 <= top_k <= logits.shape[1]:
            raise ValueError(f"top_k is {top_k}, for {logits.shape[1]} experts")
        experts = torch.empty(rows, top_k, dtype=torch.int64)
        weights = torch.empty(rows, top_k)
        _native.route(
            self._kernels, self._pool, experts.data_ptr(), view(weights), given,
            scores == "sigmoid", renormalize,
        )  # fmt: skip
        return experts, weights


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
