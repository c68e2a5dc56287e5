"""RMSNorm, LayerNorm, a factor and no norm behind one pair of calls."""

from __future__ import annotations

from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class RMSNorm:
    """Root mean square normalization; weight [width]."""

    weight: Array
    eps: float

    def forward(self, ops: Ops, x: Array) -> Array:
        """Return the normalized rows [..., width]."""
        return ops.rms_norm(x, self.weight, self.eps)

    def add_forward(self, ops: Ops, x: Array, residual: Array) -> tuple[Array, Array]:
        """Return (norm(x + residual), x + residual)."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm:
    """Layer normalization; weight and bias [width]."""

    weight: Array
    bias: Array
    eps: float

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


@dataclass(frozen=True, slots=True, eq=False)
class FactorNorm:
    """Multiplies the residual sum by `factor` before `norm`."""

    factor: float
    norm: Norm

    def forward(self, ops: Ops, x: Array) -> Array:
        return self.norm.forward(ops, ops.scale(x, self.factor))

    def add_forward(self, ops: Ops, x: Array, residual: Array) -> tuple[Array, Array]:
        total = ops.scale(ops.add(x, residual), self.factor)
        return self.norm.forward(ops, total), total


@dataclass(frozen=True, slots=True, eq=False)
class GatheredNorm:
    """`norm` of the columns of all ranks; `run` is this rank's first one, and their number."""

    norm: Norm
    run: tuple[int, int]

    def forward(self, ops: Ops, x: Array) -> Array:
        return self.norm.forward(ops, ops.all_gather(x, *self.run))


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """Multiplies `norm` of x by a factor."""

    factor: float
    norm: Norm

    def forward(self, ops: Ops, x: Array) -> Array:
        return ops.scale(self.norm.forward(ops, x), self.factor)


Norm = RMSNorm | LayerNorm | NoNorm | FactorNorm
