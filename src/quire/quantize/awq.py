"""AWQ (Lin et al. 2023): columns that see large inputs are scaled up before they are rounded.

    y = W x = (W · diag(s)) (diag(1/s) x)        diag(1/s) goes into whatever makes x

Rounding errors of a scaled column shrink by s. The s is searched among powers of the inputs'
magnitudes, by the error ‖(W − Q(W · s) / s) x‖² that is left, which H = Σ x xᵀ tells exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_POWERS = tuple(step / 20 for step in range(20))
_LEAST = 1e-4
"""Of a magnitude: an input that is never there must not divide by 0."""


def search_scale(
    weight: Tensor,
    hessian: Tensor,
    magnitude: Tensor,
    round_: Callable[[Tensor], Tensor],
    repeats: int = 1,
    repeated: int = 1,
) -> Tensor:
    """The scale of each column: float32 [K], all 1 where nothing is gained.

    Args:
        weight: float32 [N, K], the rows of all layers that share the input.
        hessian: float32 [K, K].
        magnitude: mean |x|, float32 [K].
        round_: [N, K] → the same as its quantized form stands for.
        repeats: runs of `repeated` columns that must share their scales, because one output makes
            all of them: heads of one value head under grouped queries.
    """
    activity = _shared(magnitude, repeats, repeated).clamp(min=_LEAST)
    share = weight.abs() / weight.abs().amax(1, keepdim=True).clamp(min=_LEAST)
    weights = _shared(share.mean(0), repeats, repeated).clamp(min=_LEAST)
    best = torch.ones_like(activity)
    least = _loss(weight, round_(weight), hessian)
    for power in _POWERS:
        for tried in (activity**power, activity**power / weights ** (1.0 - power)):
            scale = tried / (tried.max() * tried.min()).sqrt()
            loss = _loss(weight, round_(weight * scale) / scale, hessian)
            if loss < least:
                best, least = scale, loss
    return best


def _shared(numbers: Tensor, repeats: int, repeated: int) -> Tensor:
    """The mean of the runs, in each of them: [groups · repeats · repeated]."""
    if repeats == 1:
        return numbers
    runs = numbers.view(-1, repeats, repeated)
    return runs.mean(1, keepdim=True).expand_as(runs).reshape(-1)


def _loss(weight: Tensor, rounded: Tensor, hessian: Tensor) -> float:
    difference = rounded - weight
    return float(((difference @ hessian) * difference).sum(dtype=torch.float64))
