"""RMSNorm, LayerNorm, a factor and no norm behind one pair of calls."""

from __future__ import annotations

from quire.ops.array import Array
from quire.ops.interface import Ops


class RMSNorm:
    """Root mean square normalization; weight [width]."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: Array, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def forward(self, ops: Ops, x: Array) -> Array:
        """Return the normalized rows [..., width]."""
        return ops.rms_norm(x, self.weight, self.eps)

    def add_forward(self, ops: Ops, x: Array, residual: Array) -> tuple[Array, Array]:
        """Return (norm(x + residual), x + residual)."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)


class LayerNorm:
    """Layer normalization; weight and bias [width]."""

    __slots__ = ("bias", "eps", "weight")

    def __init__(self, weight: Array, bias: Array, eps: float) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps

    def forward(self, ops: Ops, x: Array) -> Array:
        """Return the normalized rows [..., width]."""
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def add_forward(self, ops: Ops, x: Array, residual: Array) -> tuple[Array, Array]:
        """Return (norm(x + residual), x + residual)."""
        return ops.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


class NoNorm:
    """Leaves x as it is."""

    __slots__ = ()

    def forward(self, ops: Ops, x: Array) -> Array:
        return x

    def add_forward(self, ops: Ops, x: Array, residual: Array) -> tuple[Array, Array]:
        total = ops.add(x, residual)
        return total, total


class FactorNorm:
    """Multiplies the residual sum by `factor` before `norm`."""

    __slots__ = ("factor", "norm")

    def __init__(self, factor: float, norm: Norm) -> None:
        self.factor = factor
        self.norm = norm

    def forward(self, ops: Ops, x: Array) -> Array:
        return self.norm.forward(ops, ops.scale(x, self.factor))

    def add_forward(self, ops: Ops, x: Array, residual: Array) -> tuple[Array, Array]:
        total = ops.scale(ops.add(x, residual), self.factor)
        return self.norm.forward(ops, total), total


class Scale:
    """Multiplies x by a factor."""

    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def forward(self, ops: Ops, x: Array) -> Array:
        return ops.scale(x, self.factor)


Norm = RMSNorm | LayerNorm | NoNorm | FactorNorm
