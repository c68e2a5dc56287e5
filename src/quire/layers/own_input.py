"""Embeddings that each layer has of its own (Gemma 4's per-layer embeddings)."""

from __future__ import annotations

from quire.core.model_config import Activation
from quire.layers.embedding import Embedding
from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.layers.norm import Norm
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.metadata import GatedNorm
from quire.system.records import dataclass

_HALF_VARIANCE = 2.0**-0.5


@dataclass(frozen=True, slots=True, eq=False)
class OwnInputs:
    """Makes all layers' own embeddings at once: (norm(factor · project(x)) + table[token]) / √2.

    Attributes:
        norm: of each layer's `width` columns.
    """

    embedding: Embedding
    project: Linear
    norm: Norm
    factor: float
    width: int

    def forward(self, ops: Ops, input_ids: Array, x: Array) -> Array:
        """Return [T, layers · width] for tokens, int64 [T], and their embeddings [T, hidden]."""
        context = ops.scale(self.project.forward(ops, x), self.factor)
        parts = self.norm.forward(ops, context.reshape(len(context), -1, self.width))
        own = self.embedding.look_up(ops, input_ids)
        total = ops.add(parts.reshape(len(parts), own.shape[1]), own)
        return ops.scale(total, _HALF_VARIANCE)


@dataclass(frozen=True, slots=True, eq=False)
class OwnInput:
    """Adds a layer's own embedding: out(activation(gate(x)) · embedding).

    The activation is the epilogue of `gate`, or `activation` if adapters change that.
    """

    mixes = False
    gate: Linear
    out: Linear
    first: int
    activation: Activation | None = None

    def mix(self, ops: Ops, x: Array, cache: None, tokens: Tokens) -> Array:
        """Return [T, width] for [T, hidden]."""
        assert tokens.own is not None
        gate = self.gate.forward(ops, x, tokens.adapter)
        if self.activation is not None:
            gate = ops.activation(gate, self.activation)
        return ops.gated_norm(gate, tokens.own, GatedNorm(None, 0.0, "factor", self.first))

    def project(self, ops: Ops, x: Array, adapter: Array | None = None) -> Array:
        """Return [T, hidden] for [T, width]."""
        return self.out.forward(ops, x, adapter)
