"""The scales and minima with which a group of weights rounds best, found by trying some.

x is float32 [..., group]; results are [..., 1]. The error of a weight counts by `importance`, of
x's shape. A trial rounds x to codes and fits the scale to these codes by least squares; the
better the fit, the more of Σ importance · x² it accounts for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Nearest = Callable[[Tensor], Tensor]
"""Numbers → the levels that they round to."""


def fit_scale(
    x: Tensor, importance: Tensor, nearest: Nearest, lowest: float, steps: Sequence[float]
) -> Tensor:
    """scale of x ≈ scale · nearest(x / scale); 0 where x is 0.

    Args:
        lowest: the level of largest magnitude, negative. A trial puts the largest element of x
            at `lowest + step`: the scale is negative where that element is positive.
    """
    extreme = _largest(x)
    weighted = importance * x
    scale, most = torch.zeros_like(extreme), torch.zeros_like(extreme)
    for step in steps:
        levels = nearest(x * inverse(extreme / (lowest + step)))
        fit = _dot(weighted, levels)
        norm = _dot(importance * levels, levels)
        found = fit * inverse(norm)
        explained = fit * found
        better = explained > most
        scale = torch.where(better, found, scale)
        most = torch.where(better, explained, most)
    return scale


def fit_affine(
    x: Tensor, importance: Tensor, top: int, steps: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """(scale ≥ 0, minimum ≤ 0) of x ≈ scale · q + minimum, q in 0 … top.

    A trial spreads x over `top + step` codes.
    """
    low = x.amin(-1, keepdim=True).clamp(max=0.0)
    span = x.amax(-1, keepdim=True) - low
    weighted = importance * x
    sum_w = importance.sum(-1, keepdim=True)
    sum_x = weighted.sum(-1, keepdim=True)
    scale, minimum = span / top, low
    most = torch.full_like(low, -torch.inf)
    above = x - low
    for step in steps:
        q = (above * inverse(span / (top + step))).round_().clamp_(0, top)
        weighted_q = importance * q
        sum_q = weighted_q.sum(-1, keepdim=True)
        sum_qq, sum_qx = _dot(weighted_q, q), _dot(weighted, q)
        per_determinant = inverse(sum_w * sum_qq - sum_q * sum_q)
        slope = (sum_w * sum_qx - sum_x * sum_q) * per_determinant
        start = (sum_qq * sum_x - sum_q * sum_qx) * per_determinant
        # Minima are stored without a sign: where the best is above 0, it is 0.
        start_is_zero = start > 0
        slope = torch.where(start_is_zero, sum_qx * inverse(sum_qq), slope).clamp_(min=0.0)
        start = torch.where(start_is_zero, 0.0, start)
        explained = slope * sum_qx + start * sum_x
        better = (explained > most) & (per_determinant > 0)
        scale = torch.where(better, slope, scale)
        minimum = torch.where(better, start, minimum)
        most = torch.where(better, explained, most)
    return scale, minimum


def inverse(x: Tensor) -> Tensor:
    """1 / x; 0 where that is not finite."""
    return x.reciprocal().nan_to_num_(0.0, 0.0, 0.0)


def _largest(x: Tensor) -> Tensor:
    """The element of largest magnitude, with its sign."""
    low, high = x.aminmax(dim=-1, keepdim=True)
    return torch.where(-low > high, low, high)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)
