"""GPTQ (Frantar et al. 2022): what one column loses by rounding, the columns after it make up for.

    W[:, k] → Q[:, k]      e = (W[:, k] − Q[:, k]) / U[k, k]      W[:, k+1:] −= e · U[k, k+1:]

U is the upper Cholesky factor of the inverse of H = Σ x xᵀ over the inputs x of the layer, so that
each step leaves ‖(W − Q) x‖² as small as the columns still free allow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.ops.quantized import QuantizedWeight
from quire.quantize.grid import Grid, Scales, in_groups, round_to_nearest

DAMPING = 0.01
"""Added to the diagonal of H, in units of its mean: directions that no sample has still count."""
_BLOCK = 128
"""Columns whose corrections reach the rest of the matrix in one product."""


def gptq(
    weight: Tensor, hessian: Tensor, grid: Grid, group: int, *, act_order: bool = True
) -> QuantizedWeight:
    """Quantize float32 [N, K] for inputs of second moments float32 [K, K].

    Args:
        act_order: take the columns with the largest inputs first, while many others can still
            make up for them. Groups stay runs of columns and keep the scales that fit the original
            weights, so that the format and its speed stay the same. Otherwise columns are taken
            as they lie, and a group's scales are fitted when its turn comes.

    No row ends up further from the original in ‖(W − Q) x‖² than rounding to nearest leaves it.
    """
    columns = weight.shape[1]
    order = torch.arange(columns)
    if act_order:
        order = hessian.diagonal().argsort(descending=True, stable=True)
    factor = _inverse_factor(hessian[order][:, order])
    scales = grid.fit(in_groups(weight, group), in_groups(hessian.diagonal(), group))
    # Columns are rows here: each step works on contiguous memory.
    left = weight.t()[order].contiguous()
    codes = torch.empty_like(left)
    block = max(_BLOCK // group, 1) * group if group < columns else _BLOCK
    for start in range(0, columns, block):
        stop = min(start + block, columns)
        errors = torch.empty(stop - start, weight.shape[0])
        for i in range(start, stop):
            which = int(order[i]) // group
            if not act_order and i % group == 0 and group < columns:
                _refit(grid, scales, which, left[i : i + group].t(), hessian[i : i + group])
            scale = scales.scale[:, which]
            zero = None if scales.zero is None else scales.zero[:, which]
            codes[i] = grid.encode(left[i], scale, zero)
            error = (left[i] - grid.decode(codes[i], scale, zero)) / factor[i, i]
            errors[i - start] = error
            left[i + 1 : stop].addr_(factor[i, i + 1 : stop], error, alpha=-1.0)
        left[stop:].addmm_(factor[start:stop, stop:].t(), errors, alpha=-1.0)
    found = torch.empty_like(weight)
    found[:, order] = codes.t()
    return nearer_rows(
        weight, hessian, grid.pack(found, scales, group), round_to_nearest(weight, grid, group)
    )


def row_losses(weight: Tensor, quantized: QuantizedWeight, hessian: Tensor) -> Tensor:
    """Σ ((W − Q) x)² of each row: float32 [N]."""
    difference = quantized.dequantize() - weight
    losses: Tensor = ((difference @ hessian) * difference).sum(1)
    return losses


def _refit(grid: Grid, scales: Scales, which: int, weights: Tensor, hessian: Tensor) -> None:
    """Scales of one group [N, g] as it is by now; `hessian` are its rows, [g, K]."""
    first = which * len(hessian)
    importance = hessian[:, first : first + len(hessian)].diagonal().unsqueeze(0)
    fitted = grid.fit(weights.unsqueeze(1), importance)
    scales.scale[:, which] = fitted.scale[:, 0]
    if scales.zero is not None and fitted.zero is not None:
        scales.zero[:, which] = fitted.zero[:, 0]


def _inverse_factor(hessian: Tensor) -> Tensor:
    """Upper U with Uᵀ U = H⁻¹, H damped: float32 [K, K], computed in float64."""
    damped = hessian.double()
    mean = damped.diagonal().mean()
    damped.diagonal().add_(DAMPING * mean if mean > 0 else 1.0)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True).float()
    return factor


def nearer_rows(
    weight: Tensor, hessian: Tensor, found: QuantizedWeight, nearest: QuantizedWeight
) -> QuantizedWeight:
    """Row by row the one of the two that is nearer: what is greedy may lose."""
    worse = row_losses(weight, found, hessian) > row_losses(weight, nearest, hessian)
    if bool(worse.any()):
        for name in ("codes", "scale", "zero"):
            ours, theirs = getattr(found, name), getattr(nearest, name)
            if ours is not None:
                bytes_ = torch.uint8 if ours.element_size() == 1 else ours.dtype
                ours.view(bytes_)[worse] = theirs.view(bytes_)[worse]
    return found
