"""A mixture of experts in plain torch: the oracle of `ops.native_moe`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.ops.torch_ops.reference import linear, logits
from quire.ops.weights import LinearWeight, Scores


def route(
    logits: Tensor, top_k: int, scores: Scores = "softmax", renormalize: bool = True
) -> tuple[Tensor, Tensor]:
    """The experts with the highest router logits, of each row, and their weights.

    Args:
        logits: float32 [T, experts].
        scores: what the weights are: the logits' softmax over all experts, or their sigmoids.
        renormalize: divide the weights by their sum.

    Returns:
        experts, int64 [T, top_k], by descending logits, of equal ones the first first; and
        weights, float32 [T, top_k]. NaN outranks all.
    """
    experts = logits.argsort(dim=-1, descending=True, stable=True)[:, :top_k].contiguous()
    wide = logits.double()
    weights = (wide.softmax(-1) if scores == "softmax" else wide.sigmoid()).gather(1, experts)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return experts, weights.float()


def moe(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: Sequence[LinearWeight],
    down: Sequence[LinearWeight],
) -> Tensor:
    """Each row through the experts that its router chose, by their weights (Shazeer et al. 2017).

    Args:
        x: [T, hidden].
        experts: int64 [T, top_k].
        weights: float32 [T, top_k]; as `route` gives them.
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
