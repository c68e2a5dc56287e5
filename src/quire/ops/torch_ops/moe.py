"""A mixture of experts in plain torch: the oracle of `ops.native.moe`."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.core.dtypes import DType
from quire.core.layers import RouteSpec
from quire.ops.torch_ops.arrays import torch_dtype
from quire.ops.torch_ops.reference import dense_weight, linear, logits
from quire.ops.weights import LinearWeight


def route(
    logits: Tensor,
    bias: Tensor | None,
    spec: RouteSpec,
    factors: Tensor | None = None,
    wide: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Return the experts that each row chooses, and their weights.

    Args:
        logits: [T, experts], of any float dtype.
        bias: float32 [experts], added to the scores for the choice alone; or None.
        spec: see `RouteSpec`.
        factors: float32 [experts], of the weights, where experts are not chosen one by one.
        wide: what scores are computed in.

    Returns:
        experts, int64 [T, top_k], the best first; and weights, float32 [T, top_k]. NaN outranks
        all, and makes NaN of the row's weights.

    Raises:
        ValueError: the spec does not fit the number of experts.
    """
    spec.check(logits.shape[1])
    if spec.band:
        return _one_by_one(logits.float(), spec, wide)
    exact = logits.to(wide)
    scores = exact.softmax(-1) if spec.scores == "softmax" else exact.sigmoid()
    if bias is None and spec.by_logits:
        choice = logits.float()
    else:
        choice = scores.float() if bias is None else scores.float() + bias
    if spec.num_groups > 1:
        choice = _in_top_groups(choice, spec)
    experts = choice.topk(spec.top_k).indices
    weights = scores.gather(1, experts)
    if spec.renormalize:
        divisor = weights.sum(-1, keepdim=True) + spec.epsilon
        weights = weights / divisor.clamp(min=spec.least)
    scale = spec.scale if factors is None else spec.scale * factors.to(wide)[experts]
    return experts, (weights * scale).float()


def _one_by_one(logits: Tensor, spec: RouteSpec, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the best expert of those that are left, `top_k` times, and its share among those
    within the band."""
    left, experts, weights = logits, [], []
    for _ in range(spec.top_k):
        top, best = left.max(-1, keepdim=True)
        below = (top - logits) / torch.maximum(logits.abs(), top) > spec.band
        shares = left.to(wide).masked_fill(below, -torch.inf).softmax(-1)
        weights.append(shares.gather(1, best))
        experts.append(best)
        left = left.scatter(1, best, -torch.inf)
    return torch.cat(experts, 1), (torch.cat(weights, 1) * spec.scale).float()


def _in_top_groups(choice: Tensor, spec: RouteSpec) -> Tensor:
    """Return `choice` with -infinity for the experts of other groups."""
    groups = choice.unflatten(1, (spec.num_groups, -1))
    best = groups.topk(1 if spec.group_score == "max" else 2).values
    group_scores = best.sum(-1)
    top = group_scores.topk(spec.top_groups).indices
    others = torch.ones_like(group_scores, dtype=torch.bool).scatter(1, top, False)
    masked: Tensor = groups.masked_fill(others[:, :, None], -torch.inf)
    return masked.flatten(1)


def moe(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: LinearWeight,
    down: LinearWeight,
    dtype: DType | None = None,
    weight_on_input: bool = False,
) -> Tensor:
    """Return each row's weighted sum of its chosen experts (Shazeer et al. 2017).

    Args:
        x: [T, hidden].
        experts: int64 [T, top_k], each row's different.
        weights: float32 [T, top_k]; as `route` gives them.
        gate_up, down: as `pack_linear` made them, for as many `experts`: of each expert
            [2 · width, hidden] with a gated epilogue or [width, hidden] with another, and
            [hidden, width].
        dtype: of the result; x's if None.
        weight_on_input: multiply the experts' inputs, not their results, by the weights.

    Returns:
        [T, hidden]: the float32 sum of the experts' results, in the order in which the row chose
        them, rounded once.
    """
    rows, top_k = experts.shape
    results = torch.empty(rows, top_k, x.shape[1], device=x.device)
    for index in experts.unique().tolist():
        row, choice = (experts == index).nonzero(as_tuple=True)
        inputs = x[row]
        if weight_on_input:
            inputs = (inputs.float() * weights[row, choice, None]).to(x.dtype)
        between = linear(inputs, _expert(gate_up, index))
        results[row, choice] = logits(between, _expert(down, index))
    total = torch.zeros(rows, x.shape[1], device=x.device)
    for choice in range(top_k):
        part = results[:, choice]
        total += part if weight_on_input else weights[:, choice, None] * part
    return total.to(x.dtype if dtype is None else torch_dtype(dtype))


def _expert(packed: LinearWeight, index: int) -> LinearWeight:
    weight = dense_weight(packed)
    count = len(weight.weight) // weight.experts
    rows = slice(index * count, (index + 1) * count)
    bias = None if weight.bias is None else weight.bias[rows]
    return weight._replace(weight=weight.weight[rows], bias=bias)
