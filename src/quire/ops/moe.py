"""A mixture of experts in plain torch: the oracle of `ops.native_moe`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.ops.reference import DenseWeight, linear, logits


def moe(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: Sequence[DenseWeight],
    down: Sequence[DenseWeight],
) -> Tensor:
    """Each row through the experts that its router chose, by their weights (Shazeer et al. 2017).

    Args:
        x: [T, hidden].
        experts: int64 [T, top_k].
        weights: float32 [T, top_k]; what a router's softmax gave them.
        gate_up, down: of each expert, as `pack_linear` made them: [2 · width, hidden] with the
            epilogue "silu_mul", and [hidden, width].

    Returns:
        [T, hidden] of x's dtype: the float32 sum of the experts' results, in the order in which
        the row chose them, rounded once.
    """
    rows, top_k = experts.shape
    results = torch.empty(rows, top_k, x.shape[1], device=x.device)
    for index in experts.unique().tolist():
        row, choice = (experts == index).nonzero(as_tuple=True)
        results[row, choice] = logits(linear(x[row], gate_up[index]), down[index])
    total = torch.zeros(rows, x.shape[1], device=x.device)
    for choice in range(top_k):
        total += weights[:, choice, None] * results[:, choice]
    return total.to(x.dtype)
