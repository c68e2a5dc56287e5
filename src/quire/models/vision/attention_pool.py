"""SigLIP's pooling: one learned query attends to all rows of an image."""

from __future__ import annotations

import numpy as np

from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.images import VisionConfig
from quire.layers.norm import LayerNorm
from quire.models.builder import Builder
from quire.models.parameters import ParameterSource
from quire.models.vision.layout import pool_linears
from quire.ops.interface import Ops


class AttentionPool:
    """Makes one row of all rows of an image."""

    def __init__(
        self,
        vision: VisionConfig,
        source: ParameterSource,
        ops: Ops,
        build: Builder,
        norm: LayerNorm,
    ) -> None:
        self._ops = ops
        self._heads = vision.num_heads
        self._probe = source.tensor("pool.probe.weight").reshape(1, -1)
        self._qkv, self._out, self._up, self._down = map(build.linear, pool_linears(vision))
        self._norm = norm

    def forward(self, rows: HostArray) -> HostArray:
        """Return [1, hidden] for [rows, hidden]."""
        ops, dtype = self._ops, rows.dtype
        given = ops.array(np.concatenate([self._probe, rows]))
        qkv = converted(ops.numpy(self._qkv.forward(ops, given)), FLOAT32)
        parts = qkv.reshape(len(qkv), 3, self._heads, -1).astype(np.float64)
        q, k, v = parts[0, 0], parts[1:, 1], parts[1:, 2]  # [heads, d] and twice [rows, heads, d]
        scores = np.einsum("hd,rhd->hr", q, k) / np.sqrt(q.shape[1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        found = np.einsum("hr,rhd->hd", weights, v).reshape(1, -1).astype(np.float32)
        y = self._out.forward(ops, ops.array(converted(found, dtype)))
        residual = converted(np.array(ops.numpy(y)), FLOAT32)
        y = self._down.forward(ops, self._up.forward(ops, self._norm.forward(ops, y)))
        return converted(residual + converted(ops.numpy(y), FLOAT32), dtype)
