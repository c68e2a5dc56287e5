"""Products of a tower whose inputs and results are bounded (Gemma 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.model_config import Activation
from quire.layers.linear import Linear
from quire.models.parameters import ParameterSource
from quire.models.vision.layout import BOUNDS, CLIPPED
from quire.ops.array import Array
from quire.ops.interface import Ops

if TYPE_CHECKING:
    from quire.layers.layer import Layer


class Clipped:
    """Products that read the same rows; their results lie side by side."""

    def __init__(self, layer: str, name: str, source: ParameterSource, ops: Ops) -> None:
        self._weights = [
            ops.pack_linear(part, None, dtype=source.dtype)
            for part in source.parts(f"{layer}.{name}.weight")
        ]
        self._bounds = [
            [source.tensor(f"{layer}.{part}_limits.{bound}").item() for bound in BOUNDS]
            for part in CLIPPED[name]
        ]

    def forward(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Return [T, all rows] for [T, in]."""
        given, found = ops.numpy(x), list[HostArray]()
        for weight, (*inner, low, high) in zip(self._weights, self._bounds, strict=True):
            y = ops.linear(ops.array(_bounded(given, *inner)), weight)
            found.append(_bounded(ops.numpy(y), low, high))
        return ops.array(np.concatenate(found, axis=1))


def clip(
    layer: Layer, number: int, activation: Activation, source: ParameterSource, ops: Ops
) -> None:
    """Bound what the products of a layer read and compute."""
    made = {
        name: cast("Linear", Clipped(f"layers.{number}", name, source, ops)) for name in CLIPPED
    }
    attention, mlp = layer.sublayers
    mixer: Any = attention.mixer
    attention = replace(attention, mixer=replace(mixer, qkv=made["attn.qkv"], out=made["attn.out"]))
    mixer = mlp.mixer
    mixer = replace(mixer, up=made["mlp.gate_up"], down=made["mlp.down"], activation=activation)
    layer.sublayers = [attention, replace(mlp, mixer=mixer)]


def _bounded(rows: HostArray, low: float, high: float) -> HostArray:
    return converted(np.clip(converted(rows, FLOAT32), low, high), rows.dtype)
