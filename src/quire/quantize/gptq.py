"""GPTQ (Frantar et al. 2022): later columns compensate for the rounding errors of earlier ones.

    W[:, k] → Q[:, k]      e = (W[:, k] − Q[:, k]) / U[k, k]      W[:, k+1:] −= e · U[k, k+1:]

U is the upper Cholesky factor of the inverse of H = Σ x xᵀ over the inputs x of the layer. With it,
each step minimizes ‖(W − Q) x‖² over the columns that are not rounded yet.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from quire.core.dtypes import Floats, HostArray
from quire.core.quantized import QuantizedWeight
from quire.quantize.grid import Grid, Scales, fit, round_to_nearest

DAMPING = 0.01
"""Added to the diagonal of H, as a share of its mean, for directions that no sample has."""
_BLOCK = 128
"""Columns whose corrections are applied to the rest of the matrix in one product."""
_ROWS = 1024
"""Rows of a product that are computed at once, to keep temporary arrays small."""


class Rows(Protocol):
    """A quantized weight in any form."""

    def rows(self, first: int, count: int) -> Rows:
        """Return rows [first, first + count)."""

    def dequantize(self) -> Floats:
        """Return float32 [N, K]."""


def gptq(
    weight: Floats, hessian: Floats, grid: Grid, group: int, *, act_order: bool = True
) -> QuantizedWeight:
    """Quantize float32 [N, K] for inputs with second moments float32 [K, K].

    Args:
        act_order: quantize the columns with the largest inputs first, while many others can still
            compensate for them. Groups are still runs of columns, with the scales of the original
            weights, so the format and its speed do not change. If false, columns are quantized in
            order, and a group's scales are fitted when its first column is reached.

    No row has a larger error ‖(W − Q) x‖² than with rounding to nearest.
    """
    n, columns = weight.shape
    order = np.arange(columns)
    if act_order:
        order = np.argsort(-hessian.diagonal(), kind="stable")
    factor = _inverse_factor(hessian[np.ix_(order, order)])
    scales = fit(weight, grid, group, hessian.diagonal())
    # Transposed, so that each step works on contiguous memory.
    left = weight.T[order]
    codes = np.empty(left.shape, grid.code_dtype)
    block = max(_BLOCK // group, 1) * group if group < columns else _BLOCK
    for start in range(0, columns, block):
        stop = min(start + block, columns)
        errors = np.empty((stop - start, n), np.float32)
        corrected = start  # errors of earlier columns have reached these columns
        for i in range(start, stop):
            which = int(order[i]) // group
            if not act_order and i % group == 0 and group < columns:
                ahead = slice(i, i + group)
                left[ahead] -= factor[start:i, ahead].T @ errors[: i - start]
                _refit(grid, scales, which, left[ahead].T, hessian[ahead, ahead])
                corrected = i
            left[i] -= factor[corrected:i, i] @ errors[corrected - start : i - start]
            scale = scales.scale[:, which]
            zero = None if scales.zero is None else scales.zero[:, which]
            code = grid.encode(left[i], scale, zero)
            errors[i - start] = (left[i] - grid.decode(code, scale, zero)) / factor[i, i]
            codes[i] = code.astype(grid.code_dtype)
        for row in range(stop, columns, _ROWS):
            ahead = slice(row, row + _ROWS)
            left[ahead] -= factor[start:stop, ahead].T @ errors
    found = np.empty((n, columns), grid.code_dtype)
    found[:, order] = codes.T
    quantized = QuantizedWeight(found, grid.bits, scales.scale, group, scales.zero)
    return nearer_rows(weight, hessian, quantized, round_to_nearest(weight, grid, group))


def row_losses(weight: Floats, quantized: Rows, hessian: Floats) -> Floats:
    """Return Σ ((W − Q) x)² of each row: float32 [N]."""
    losses = np.empty(len(weight), np.float32)
    for first in range(0, len(weight), _ROWS):
        part = weight[first : first + _ROWS]
        difference = quantized.rows(first, len(part)).dequantize() - part
        losses[first : first + _ROWS] = ((difference @ hessian) * difference).sum(1)
    return losses


def nearer_rows(
    weight: Floats, hessian: Floats, found: QuantizedWeight, nearest: QuantizedWeight
) -> QuantizedWeight:
    """Replace the rows of `found` that have a larger error than those of `nearest`."""
    worse = row_losses(weight, found, hessian) > row_losses(weight, nearest, hessian)
    for name in ("codes", "scale", "zero"):
        ours, theirs = getattr(found, name), getattr(nearest, name)
        if ours is not None:
            ours[worse] = theirs[worse]
    return found


def _refit(grid: Grid, scales: Scales, which: int, weights: Floats, hessian: Floats) -> None:
    """Fit the scales of one group's corrected weights [N, g]; `hessian` is its part, [g, g]."""
    fitted = grid.fit(weights[:, np.newaxis], hessian.diagonal()[np.newaxis])
    scales.scale[:, which] = fitted.scale[:, 0]
    if scales.zero is not None and fitted.zero is not None:
        scales.zero[:, which] = fitted.zero[:, 0]


def _inverse_factor(hessian: Floats) -> Floats:
    """Return the upper U with Uᵀ U = H⁻¹, H damped: float32 [K, K], computed in float64.

    With rows and columns reversed, H = L Lᵀ; so U is L⁻¹ with rows and columns reversed.
    """
    damped = hessian[::-1, ::-1].astype(np.float64)
    diagonal = np.einsum("ii->i", damped)
    mean = diagonal.mean()
    diagonal += DAMPING * mean if mean > 0 else 1.0
    lower = np.linalg.cholesky(damped)
    del damped
    _invert(lower)
    return np.ascontiguousarray(lower[::-1, ::-1], np.float32)


def _invert(lower: HostArray) -> None:
    """Replace a lower triangular matrix by its inverse, recursively by halves."""
    if len(lower) <= _BLOCK:
        lower[:] = np.tril(np.linalg.inv(lower))
        return
    half = len(lower) // 2
    first, last, corner = lower[:half, :half], lower[half:, half:], lower[half:, :half]
    _invert(first)
    _invert(last)
    corner[:] = -(last @ corner) @ first
