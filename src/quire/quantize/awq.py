"""AWQ (Lin et al. 2023): columns that see large inputs are scaled up before they are rounded.

    y = W x = (W · diag(s)) (diag(1/s) x)        diag(1/s) is folded into what produces x

Rounding errors of a scaled column shrink by s. The candidates for s are powers of the inputs'
magnitudes; the one with the least error ‖(W − Q(W · s) / s) x‖² is used. The error is computed from
H = Σ x xᵀ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from quire.core.dtypes import Floats

_POWERS = tuple(step / 20 for step in range(20))
_LEAST = 1e-4
"""Minimum magnitude, so that an input that is always 0 causes no division by 0."""
_ROWS = 1024
"""Rows of a product that are computed at once, to keep temporary arrays small."""


def search_scale(
    weights: Sequence[Floats],
    hessians: Sequence[Floats],
    magnitude: Floats,
    round_: Callable[[Floats], Floats],
    repeats: int = 1,
    repeated: int = 1,
) -> Floats:
    """Return the scale of each column: float32 [K], all 1 if no scale reduces the error.

    Args:
        weights: float32 [N, K], of one layer or of each expert; they share the scale.
        hessians: of each, float32 [K, K].
        magnitude: mean |x|, float32 [K].
        round_: some rows [n, K] → their values after quantization.
        repeats: number of consecutive runs of `repeated` columns that must share scales because
            one output produces them all: the query heads of one value head.
    """

    def loss(scale: Floats) -> float:
        total = 0.0
        for weight, hessian in zip(weights, hessians, strict=True):
            for first in range(0, len(weight), _ROWS):
                rows = weight[first : first + _ROWS]
                difference = round_(rows * scale) / scale - rows
                total += float(((difference @ hessian) * difference).sum(dtype=np.float64))
        return total

    activity = np.maximum(_shared(magnitude, repeats, repeated), _LEAST)
    means = [_relative(weight).mean(0) for weight in weights]
    size = np.maximum(_shared(np.mean(means, axis=0), repeats, repeated), _LEAST)
    best = np.ones_like(activity)
    least = loss(best)
    for power in _POWERS:
        for tried in (activity**power, activity**power / size ** (1.0 - power)):
            scale = tried / np.sqrt(tried.max() * tried.min())
            tried_loss = loss(scale)
            if tried_loss < least:
                best, least = scale, tried_loss
    return best


def _relative(weight: Floats) -> Floats:
    """Return |weight| divided by the largest of its row."""
    share = np.abs(weight)
    share /= np.maximum(share.max(1, keepdims=True), _LEAST)
    return share


def _shared(numbers: Floats, repeats: int, repeated: int) -> Floats:
    """Return an array in which each run is replaced by the mean of its group's runs."""
    if repeats == 1:
        return numbers
    runs = numbers.reshape(-1, repeats, repeated)
    return np.repeat(runs.mean(1, keepdims=True), repeats, axis=1).reshape(-1)
