"""The feed-forward layer, with and without a gate."""

from __future__ import annotations

from torch import Tensor

from quire.layers.linear import Linear
from quire.ops.table import OpTable


class GatedMLP:
    """down(silu(gate(x)) · up(x)) (SwiGLU, Shazeer 2020); gate and up are one matrix."""

    __slots__ = ("down", "gate_up")

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down

    def forward(self, ops: OpTable, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        return self.down.forward(ops, ops.silu_mul(self.gate_up.forward(ops, x)))


class PlainMLP:
    """down(activation(up(x))); `activation` is the name of an operation."""

    __slots__ = ("activation", "down", "up")

    def __init__(self, up: Linear, down: Linear, activation: str) -> None:
        self.up = up
        self.down = down
        self.activation = activation

    def forward(self, ops: OpTable, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        activation = getattr(ops, self.activation)
        return self.down.forward(ops, activation(self.up.forward(ops, x)))


MLP = GatedMLP | PlainMLP
