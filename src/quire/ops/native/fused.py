"""The small operations, native: each means what its namesake in `torch_ops.reference` does.

All arrays have one dtype (float32, bfloat16 or float16) unless stated. Rows of x may be apart: a
slice of a wider array costs no copy. Results are new, contiguous arrays. Raises
ValueError for what does not fit, IndexError for a token, position or slot outside its table. A
row's bits depend on that row alone.
"""

from __future__ import annotations

import numpy as np

from quire import _native
from quire.core.dtypes import HostArray
from quire.core.model_config import Activation
from quire.ops.array import address
from quire.ops.filters import FloatRow
from quire.ops.metadata import Heads, KVCache
from quire.ops.native.checks import (
    cache_view,
    check_cache,
    contiguous,
    dense,
    describe,
    indices,
    like,
    matrix,
    misfit,
    no_heads_of,
    view,
)
from quire.ops.native.kernels import OnPool
from quire.ops.sample_row import TokenIds
from quire.ops.weights import GATED


class FusedKernels(OnPool):
    """The small operations; threads share the rows of large ones."""

    @property
    def isa(self) -> str:
        """Return the name of the instruction set."""
        return self._kernels.isa

    def lookup(self, ids: HostArray, weight: HostArray) -> HostArray:
        """Return rows `ids` (int64 [T]) of `weight` [vocab, hidden] as [T, hidden]."""
        rows, table = indices("ids", ids), matrix("weight", weight)
        y = np.empty((ids.size, weight.shape[1]), weight.dtype)
        _native.embedding(self._pool, None, view(y), rows, table, None, 0, 0)
        return y

    def add(self, x: HostArray, y: HostArray) -> HostArray:
        """Return x + y [..., cols], rounded to their dtype."""
        x_rows, y_rows, out = dense("x", x), dense("y", y), like(x)
        _native.add(self._kernels, self._pool, view(out), view(x_rows), view(y_rows))
        return out

    def rms_norm(self, x: HostArray, weight: HostArray, eps: float) -> HostArray:
        """Return x / rms(x) · weight over the last dimension, rounded before and after `weight`;
        only after it if `weight` is float32 and x is not."""
        rows, gain, y = dense("x", x), contiguous("weight", weight, 1), like(x)
        _native.rms_norm(self._kernels, self._pool, view(y), view(rows), gain, eps)
        return y

    def add_rms_norm(
        self, x: HostArray, residual: HostArray, weight: HostArray, eps: float
    ) -> tuple[HostArray, HostArray]:
        rows, others = dense("x", x), dense("residual", residual)
        gain, y, total = contiguous("weight", weight, 1), like(x), like(x)
        _native.add_rms_norm(
            self._kernels, self._pool, view(y), view(total), view(rows), view(others), gain, eps
        )
        return y, total

    def layer_norm(self, x: HostArray, weight: HostArray, bias: HostArray, eps: float) -> HostArray:
        """Return the layer norm over the last dimension, computed in float32, rounded once."""
        rows, y = dense("x", x), like(x)
        gain, offset = contiguous("weight", weight, 1), contiguous("bias", bias, 1)
        _native.layer_norm(self._kernels, self._pool, view(y), view(rows), gain, offset, eps)
        return y

    def add_layer_norm(
        self, x: HostArray, residual: HostArray, weight: HostArray, bias: HostArray, eps: float
    ) -> tuple[HostArray, HostArray]:
        rows, others = dense("x", x), dense("residual", residual)
        gain, offset = contiguous("weight", weight, 1), contiguous("bias", bias, 1)
        y, total = like(x), like(x)
        _native.add_layer_norm(
            self._kernels, self._pool, view(y), view(total), view(rows), view(others), gain,
            offset, eps,
        )  # fmt: skip
        return y, total

    def activation(self, x: HostArray, kind: Activation) -> HostArray:
        """Apply the activation; a gated one maps [..., 2 · width] to [..., width]."""
        rows = dense("x", x)
        if kind not in GATED:
            y = like(x)
        elif rows.shape[1] % 2:
            raise ValueError(f"x is {describe(x)}; wanted an even last dimension")
        else:
            y = np.empty((*x.shape[:-1], rows.shape[1] // 2), x.dtype)
        code = _native.EPILOGUES[kind]
        _native.activation(self._kernels, self._pool, code, view(y), view(rows))
        return y

    def scale(self, x: HostArray, factor: float) -> HostArray:
        rows, y = dense("x", x), like(x)
        _native.scale(self._kernels, self._pool, view(y), view(rows), factor)
        return y

    def softcap(self, x: HostArray, cap: float) -> HostArray:
        rows, y = dense("x", x), like(x)
        _native.softcap(self._kernels, self._pool, view(y), view(rows), cap)
        return y

    def xielu(self, x: HostArray, positive: float, negative: float, linear: float) -> HostArray:
        rows, y = dense("x", x), like(x)
        _native.xielu(
            self._kernels, self._pool, view(y), view(rows), positive, negative, linear
        )  # fmt: skip
        return y

    def rope_kv_write(
        self,
        qkv: HostArray,
        positions: HostArray,
        cos_sin: HostArray | None,
        cache: KVCache[HostArray],
        slot_mapping: HostArray,
        heads: Heads[HostArray],
    ) -> HostArray:
        """Normalize, rotate and store q, k and v of the qkv product in one pass over its rows.

        Equal to the bit to splitting, `rms_norm` of q and k, rotation and storing. Norms wider than
        a head are computed first, in place.

        Args:
            qkv: [T, (heads.q + 2 · heads.kv) · heads.width]; q, then k, then v. A gate as wide as
                q may follow.
            positions: int64 [T].
            cos_sin: float32 [max_len, rotary_dim]; None does not turn.
            cache: receives k and v unless heads.kv is 0; of qkv's dtype, bfloat16, or of 8 bits
                (see `reference.quantize_heads`).
            slot_mapping: int64 [T]; block · block_size + offset. Slots must differ.
            heads: weights of norms have one dtype.

        Returns:
            q, contiguous [T, heads.q, heads.width].
        """
        q_heads, kv_heads, head_dim, q_norm, k_norm, v_norm, eps = heads
        columns, rows = matrix("qkv", qkv), indices("positions", positions)
        if kv_heads:
            check_cache(cache, qkv.dtype, kv_heads, head_dim)
        if q_norm is not None and k_norm is not None and {len(q_norm), len(k_norm)} != {head_dim}:
            split = q_heads * head_dim
            parts = qkv[:, :split], qkv[:, split : split + kv_heads * head_dim]
            self._norm_all_heads(parts, (q_norm, k_norm), eps, head_dim)
            q_norm = k_norm = None
        q = np.empty((qkv.shape[0], q_heads, head_dim), qkv.dtype)
        _native.rope_kv_write(
            self._kernels,
            self._pool,
            view(q.reshape(len(q), q_heads * head_dim)),
            columns,
            rows,
            None if cos_sin is None else contiguous("cos_sin", cos_sin, 2),
            None if q_norm is None else contiguous("q_norm", q_norm, 1),
            None if k_norm is None else contiguous("k_norm", k_norm, 1),
            None if v_norm is None else contiguous("v_norm", v_norm, 1),
            eps,
            cache_view(cache) if kv_heads else no_heads_of(cache, qkv.dtype, head_dim),
            indices("slot_mapping", slot_mapping),
        )
        return q

    def _norm_all_heads(
        self,
        parts: tuple[HostArray, HostArray],
        weights: tuple[HostArray, HostArray],
        eps: float,
        head_dim: int,
    ) -> None:
        """Compute `rms_norm` of q and of k, `parts` of qkv, each over all heads, in place."""
        for name, x, weight in zip(("q_norm", "k_norm"), parts, weights, strict=True):
            gain, part = contiguous(name, weight, 1), view(x)
            if len(weight) != x.shape[1]:
                raise misfit(name, weight, "qkv", x)
            _native.rms_norm(self._kernels, self._pool, part, part, gain, eps)

    def argmax(self, logits: HostArray) -> tuple[TokenIds, FloatRow]:
        """Return the largest value of each row of float32 [rows, vocab] and its first index.

        Returns:
            new arrays: tokens int64 [rows], -1 where the row has NaN or +infinity or nothing but
            -infinity; peaks float32 [rows], NaN where the row has one.
        """
        given, rows = matrix("logits", logits), logits.shape[0]
        tokens, peaks = np.empty(rows, np.int64), np.empty(rows, np.float32)
        _native.argmax(self._kernels, self._pool, address(tokens), address(peaks), given)
        return tokens, peaks
