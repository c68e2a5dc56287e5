"""Feed-forward sub-layers."""

from __future__ import annotations

from quire.core.model_config import Activation
from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.layers.norm import GatheredNorm, Norm
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class MLP:
    """down(activation(up(x))).

    Where there is a gate, `up` is gate and up in one matrix, and the layer computes
    down(silu(gate(x)) · up(x)) (SwiGLU, Shazeer 2020), or the same with gelu or gelu_tanh.
    `activation` is the op between the two, None where `up` was packed with it as its epilogue;
    `sub_norm` follows it (BitNet). `xielu` has the numbers of an xIELU (Apertus).
    """

    mixes = False
    up: Linear
    down: Linear
    activation: Activation | None = None
    sub_norm: Norm | GatheredNorm | None = None
    xielu: tuple[float, float, float] | None = None

    def mix(self, ops: Ops, x: Array, cache: None, tokens: Tokens) -> Array:
        """Return `x`: each token is computed alone."""
        return x

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Return [T, hidden] for [T, hidden]."""
        x = self.up.forward(ops, x, adapter)
        if self.activation is not None:
            x = ops.activation(x, self.activation)
        if self.xielu is not None:
            x = ops.xielu(x, *self.xielu)
        if self.sub_norm is not None:
            x = self.sub_norm.forward(ops, x)
        return self.down.forward(ops, x, adapter)
