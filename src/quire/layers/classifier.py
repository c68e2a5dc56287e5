"""The head of a model that classifies: in the lm_head's place, labels instead of tokens."""

from __future__ import annotations

from torch import Tensor

from quire.layers.linear import Linear
from quire.ops.table import OpTable


class Classifier:
    """out(x), or out(tanh(dense(x))) as BERT has it; weights [labels, hidden], [hidden, hidden]."""

    __slots__ = ("dense", "out")

    def __init__(self, out: Linear, dense: Linear | None = None) -> None:
        self.dense = dense
        self.out = out

    def forward(self, ops: OpTable, x: Tensor) -> Tensor:
        """[N, hidden] → float32 [N, labels]."""
        if self.dense is not None:
            x = ops.softcap(self.dense.forward(ops, x), 1.0)  # which is tanh
        return self.out.logits(ops, x)
