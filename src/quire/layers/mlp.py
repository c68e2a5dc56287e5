"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from torch import Tensor

from quire.layers.linear import Linear
from quire.ops.table import OpTable


class MLP:
    """down(activation(up(x))).

    The activation is the epilogue that `up` is packed with; with "silu_mul" `up` is gate and up in
    one matrix, and the layer computes down(silu(gate(x)) · up(x)) (SwiGLU, Shazeer 2020). With
    `gelu_gate`, `up` is such a matrix without an epilogue: down(gelu_tanh(gate(x)) · up(x)).
    """

    __slots__ = ("down", "gelu_gate", "up")

    def __init__(self, up: Linear, down: Linear, *, gelu_gate: bool = False) -> None:
        self.up = up
        self.down = down
        self.gelu_gate = gelu_gate

    def forward(self, ops: OpTable, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        x = self.up.forward(ops, x)
        return self.down.forward(ops, ops.gelu_tanh_mul(x) if self.gelu_gate else x)
