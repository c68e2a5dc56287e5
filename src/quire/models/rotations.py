"""The tables of rotations that a model's layers share."""

from __future__ import annotations

import numpy as np

from quire.core.dtypes import DType, Floats, converted
from quire.core.model_config import ModelConfig, RopeConfig
from quire.layers.rotary import rope_magnitude, rope_table
from quire.ops.array import Array
from quire.ops.interface import Ops


class Rotations:
    """Makes each table once, on the device.

    A norm of q and k behind RoPE takes RoPE's magnitude out again. `Attention` normalizes first, so
    the tables of such models are without it.
    """

    def __init__(self, config: ModelConfig, max_len: int, ops: Ops) -> None:
        self._config = config
        self._max_len = max_len
        self._ops = ops
        self._norm_behind = config.qk_norm in ("rotated", "unit")
        self._tables: dict[int, Array] = {}
        """id of a RoPE → its table; minus the id → that of queries."""

    def table(self, rope: RopeConfig | None) -> Array | None:
        """Return float32 [max_len, rotary_dim] (`layers.rotary.rope_table`); None without RoPE."""
        if rope is None:
            return None
        if id(rope) not in self._tables:
            table = rope_table(rope, self._max_len, scaled=not self._norm_behind)
            self._tables[id(rope)] = self._ops.array(table)
        return self._tables[id(rope)]

    def norm_eps(self, rope: RopeConfig | None) -> float:
        """Return what the norms of q and k add to the mean square.

        Behind RoPE of magnitude m: m·x / √(m²·x² + eps) = x / √(x² + eps / m²).
        """
        eps = self._config.norm_eps
        return eps / rope_magnitude(rope) ** 2 if rope is not None and self._norm_behind else eps

    def of_queries(self, rope: RopeConfig | None) -> Array | None:
        """Return q's own table, if queries grow beyond the trained positions; else None."""
        factors = self._growth(rope)
        if factors is None:
            return None
        if -id(rope) not in self._tables:
            if rope is None:  # a rotation by nothing
                half = self._config.head_dim // 2
                table = np.repeat([[1.0, 0.0]], half, axis=1).astype(np.float32)
            else:
                table = rope_table(rope, self._max_len)
            self._tables[-id(rope)] = self._ops.array(table * factors)
        return self._tables[-id(rope)]

    def growth(self, rope: RopeConfig | None, dtype: DType) -> Array | None:
        """Return the factor of queries at each position, [max_len, 1], if these grow; else None."""
        factors = self._growth(rope)
        if factors is not None and -id(rope) not in self._tables:
            self._tables[-id(rope)] = self._ops.array(converted(factors, dtype))
        return None if factors is None else self._tables[-id(rope)]

    def _growth(self, rope: RopeConfig | None) -> Floats | None:
        growth = self._config.query_growth
        if growth is None or growth.unrotated != (rope is None):
            return None
        if self._max_len + growth.ahead <= growth.length:
            return None
        position = np.arange(self._max_len) + growth.ahead
        factors = 1.0 + growth.beta * np.log1p(position // growth.length)
        return factors.astype(np.float32).reshape(-1, 1)
