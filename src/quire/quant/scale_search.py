"""Search the scale and minimum with which a group of weights rounds best.

x is float32 [..., group, blocks]; results are [..., 1, blocks]. `importance`, of x's shape, weights
the squared error of each element. A trial rounds x to codes, then fits the scale to these codes by
least squares. The best trial is the one that explains most of Σ importance · x².

Blocks come last: all arithmetic runs along contiguous memory, however small a group is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from quire.core.dtypes import Floats

Nearest = Callable[[Floats], Floats]
"""Round numbers to levels; may overwrite its argument."""


def fit_scale(
    x: Floats, importance: Floats, nearest: Nearest, lowest: float, steps: Sequence[float]
) -> Floats:
    """Return the scale of x ≈ scale · nearest(x / scale); 0 if x is 0.

    Args:
        lowest: the level of largest magnitude, negative. A trial puts the largest element of x
            at `lowest + step`: the scale is negative if that element is positive.
    """
    extreme = largest(x, -2)
    weighted = importance * x
    scale, most = np.zeros_like(extreme), np.zeros_like(extreme)
    for step in steps:
        levels = nearest(x * inverse(extreme / (lowest + step)))
        fit = _dot(weighted, levels)
        norm = _dot(importance * levels, levels)
        found = fit * inverse(norm)
        explained = fit * found
        better = explained > most
        np.copyto(scale, found, where=better)
        np.copyto(most, explained, where=better)
    return scale


def fit_affine(
    x: Floats, importance: Floats, top: int, steps: Sequence[float]
) -> tuple[Floats, Floats]:
    """Return (scale ≥ 0, minimum ≤ 0) of x ≈ scale · q + minimum, q in 0 … top.

    A trial spreads x over `top + step` codes.
    """
    low = np.minimum(x.min(-2, keepdims=True), 0)
    span = x.max(-2, keepdims=True) - low
    weighted = importance * x
    sum_w, sum_x = (a.sum(-2, keepdims=True) for a in (importance, weighted))
    scale, minimum = span / top, low.copy()
    most = np.full_like(low, -np.inf)
    above = x - low
    q, weighted_q = np.empty_like(x), np.empty_like(x)
    for step in steps:
        np.multiply(above, inverse(span / (top + step)), out=q)
        np.clip(np.rint(q, out=q), 0, top, out=q)
        np.multiply(importance, q, out=weighted_q)
        sum_q = weighted_q.sum(-2, keepdims=True)
        sum_qq, sum_qx = _dot(weighted_q, q), _dot(weighted, q)
        per_determinant = inverse(sum_w * sum_qq - sum_q * sum_q)
        slope = (sum_w * sum_qx - sum_x * sum_q) * per_determinant
        start = (sum_qq * sum_x - sum_q * sum_qx) * per_determinant
        # Minima are stored without a sign: if the best is above 0, use 0.
        start_is_zero = start > 0
        slope = np.maximum(np.where(start_is_zero, sum_qx * inverse(sum_qq), slope), 0)
        start[start_is_zero] = 0
        explained = slope * sum_qx + start * sum_x
        better = (explained > most) & (per_determinant > 0)
        np.copyto(scale, slope, where=better)
        np.copyto(minimum, start, where=better)
        np.copyto(most, explained, where=better)
    return scale, minimum


def inverse(x: Floats) -> Floats:
    """Return 1 / x; 0 if that is not finite."""
    result = np.reciprocal(x)
    result[~np.isfinite(result)] = 0
    return result


def largest(x: Floats, axis: int) -> Floats:
    """Return the elements of largest magnitude along `axis`, with their signs; keeps the axis."""
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    result: Floats = np.where(-low > high, low, high)
    return result


def _dot(a: Floats, b: Floats) -> Floats:
    return np.expand_dims(np.einsum("...gn,...gn->...n", a, b), -2)
