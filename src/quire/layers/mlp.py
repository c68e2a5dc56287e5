"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from quire.layers.linear import Linear
from quire.ops.table import OpTable

Activation = Literal["silu_mul", "gelu_tanh_mul", "gelu_mul", "gelu", "gelu_tanh", "relu"]


class MLP:
    """down(activation(up(x))).

    Where there is a gate, `up` is gate and up in one matrix, and the layer computes
    down(silu(gate(x)) · up(x)) (SwiGLU, Shazeer 2020), or the same with gelu or gelu_tanh.
    `activation` is the op between the two, None where `up` was packed with it as its epilogue.
    """

    __slots__ = ("activation", "down", "up")

    def __init__(self, up: Linear, down: Linear, activation: Activation | None = None) -> None:
        self.up = up
        self.down = down
        self.activation = activation

    def forward(self, ops: OpTable, x: Tensor, adapter: Tensor | None = None) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        x = self.up.forward(ops, x, adapter)
        if self.activation is not None:
            x = getattr(ops, self.activation)(x)
        return self.down.forward(ops, x, adapter)
