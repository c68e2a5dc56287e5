"""A linear layer."""

from __future__ import annotations

from torch import Tensor

from quire.ops.table import OpTable


class Linear:
    """x @ weight.T + bias; weight [out, in], bias [out] or None."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def forward(self, ops: OpTable, x: Tensor) -> Tensor:
        """[T, in] → [T, out]."""
        return ops.linear(x, self.weight, self.bias)
