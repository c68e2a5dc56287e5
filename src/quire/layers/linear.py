"""A linear layer."""

from __future__ import annotations

from torch import Tensor

from quire.ops.table import LinearWeight, OpTable


class Linear:
    """epilogue(x @ weight.T + bias), in the form that the provider's `pack_linear` made."""

    __slots__ = ("weight",)

    def __init__(self, weight: LinearWeight) -> None:
        self.weight = weight

    def forward(self, ops: OpTable, x: Tensor) -> Tensor:
        """[T, in] → [T, out]."""
        return ops.linear(x, self.weight)

    def logits(self, ops: OpTable, x: Tensor) -> Tensor:
        """[N, in] → float32 [N, out]."""
        return ops.logits(x, self.weight)
