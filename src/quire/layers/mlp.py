"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from torch import Tensor

from quire.layers.linear import Linear
from quire.ops.table import OpTable


class MLP:
    """down(activation(up(x))).

    The activation is the epilogue that `up` is packed with; with "silu_mul" `up` is gate and up in
    one matrix, and the layer computes down(silu(gate(x)) · up(x)) (SwiGLU, Shazeer 2020); with
    "gelu_tanh_mul", down(gelu_tanh(gate(x)) · up(x)) (Gemma).
    """

    __slots__ = ("down", "up")

    def __init__(self, up: Linear, down: Linear) -> None:
        self.up = up
        self.down = down

    def forward(self, ops: OpTable, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        return self.down.forward(ops, self.up.forward(ops, x))
