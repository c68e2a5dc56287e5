"""The head of a model that classifies: in the lm_head's place, labels instead of tokens."""

from __future__ import annotations

from dataclasses import KW_ONLY

from quire.layers.linear import Linear
from quire.layers.norm import Norm
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """out(x), or out(tanh(dense(x))) as BERT has it; weights [labels, hidden], [hidden, hidden].

    Attributes:
        norm: behind the activation (ModernBERT).
        tanh: else dense's weight has an activation of its own.
    """

    out: Linear
    dense: Linear | None = None
    _: KW_ONLY
    norm: Norm
    tanh: bool = True

    def forward(self, ops: Ops, x: Array) -> Array:
        """Return float32 [N, labels] for [N, hidden]."""
        if self.dense is not None:
            x = self.dense.forward(ops, x)
            x = ops.softcap(x, 1.0) if self.tanh else x  # which is tanh
        return self.out.logits(ops, self.norm.forward(ops, x))
