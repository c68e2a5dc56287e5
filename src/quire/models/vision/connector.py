"""The products behind a tower's layers, and the norms in front of them."""

from __future__ import annotations

import numpy as np

from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.images import Product, VisionConfig
from quire.layers.linear import Linear
from quire.layers.norm import LayerNorm, Norm, RMSNorm
from quire.models.builder import Builder
from quire.models.parameters import ParameterSource
from quire.models.vision.layout import products
from quire.ops.interface import Ops


def layer_norm(stem: str, source: ParameterSource, ops: Ops, eps: float) -> LayerNorm:
    weight, bias = (ops.array(source.tensor(f"{stem}.{kind}")) for kind in ("weight", "bias"))
    return LayerNorm(weight, bias, eps)


class Connector:
    """The products of the last layer, or of a deep one.

    Args:
        stem, wanted: of `layout.connectors`.
    """

    def __init__(
        self,
        vision: VisionConfig,
        stem: str,
        wanted: tuple[Product, ...],
        source: ParameterSource,
        ops: Ops,
        build: Builder,
    ) -> None:
        self._vision, self._ops = vision, ops
        self._patch_norm: Norm | None = None
        self._steps = list[tuple[Norm | None, Product, Linear]]()
        for product, width, linear in products(vision, stem, wanted):
            norm = _norm(product, f"{linear.stem}.norm", width, source, ops)
            if product.norm != "layer":
                self._patch_norm, norm = norm or self._patch_norm, None
            self._steps.append((norm, product, build.linear(linear)))

    def side_by_side(self, rows: HostArray) -> HostArray:
        """Return what enters the first product, for patches [T, hidden]."""
        vision, ops = self._vision, self._ops
        if self._patch_norm is not None:
            y = self._patch_norm.forward(ops, ops.array(np.ascontiguousarray(rows)))
            rows = np.array(ops.numpy(y))
        if vision.by_channel:
            rows = rows.reshape(-1, vision.row_patches, vision.hidden_size).swapaxes(1, 2)
        return np.ascontiguousarray(rows).reshape(-1, vision.row_values)

    def forward(self, rows: HostArray) -> HostArray:
        """Return rows of the text model for some of `side_by_side`."""
        ops, y = self._ops, self._ops.array(rows)
        for norm, product, linear in self._steps:
            if norm is not None:
                y = norm.forward(ops, y)
            if product.norm_activation != "none":
                y = ops.activation(y, product.norm_activation)
            y = linear.forward(ops, y)
        return np.array(ops.numpy(y))


def _norm(
    product: Product, stem: str, width: int, source: ParameterSource, ops: Ops
) -> Norm | None:
    if product.norm is None:
        return None
    if product.norm in ("layer", "patch"):
        return layer_norm(stem, source, ops, product.eps)
    if product.norm == "unit":
        return RMSNorm(ops.array(np.ones(width, source.dtype)), product.eps)
    gain = source.tensor(f"{stem}.weight")
    if product.norm == "plus_one":
        gain = converted(gain, FLOAT32) + np.float32(1)
    return RMSNorm(ops.array(gain), product.eps)
