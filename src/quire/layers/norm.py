"""RMSNorm, LayerNorm and no norm behind one pair of calls."""

from __future__ import annotations

from torch import Tensor

from quire.ops.interface import Ops


class RMSNorm:
    """Root mean square normalization; weight [width]."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def forward(self, ops: Ops, x: Tensor) -> Tensor:
        """[..., width] → [..., width]."""
        return ops.rms_norm(x, self.weight, self.eps)

    def add_forward(self, ops: Ops, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual)."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)


class LayerNorm:
    """Layer normalization; weight and bias [width]."""

    __slots__ = ("bias", "eps", "weight")

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps

    def forward(self, ops: Ops, x: Tensor) -> Tensor:
        """[..., width] → [..., width]."""
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def add_forward(self, ops: Ops, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual)."""
        return ops.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


class NoNorm:
    """Leaves x as it is."""

    __slots__ = ()

    def forward(self, ops: Ops, x: Tensor) -> Tensor:
        return x

    def add_forward(self, ops: Ops, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = ops.add(x, residual)
        return total, total


Norm = RMSNorm | LayerNorm | NoNorm
