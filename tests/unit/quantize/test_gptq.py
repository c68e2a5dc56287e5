"""GPTQ against least squares solved anew, in float64, after every column."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.quantize.gptq import DAMPING, gptq, row_losses
from quire.quantize.grid import Grid, in_groups, round_to_nearest

INT4 = Grid("int", 4, scale_dtype=torch.float32)
GRIDS = {
    "int4": INT4,
    "int4 asymmetric": Grid("int", 4, symmetric=False, scale_dtype=torch.float32),
    "int8": Grid("int", 8, scale_dtype=torch.float32),
    "fp8": Grid("float8", 8, scale_dtype=torch.float32),
}


def layer(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    """A weight, and second moments of inputs that are correlated and differ in size."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator)
    sizes = torch.linspace(0.1, 3.0, columns)[torch.randperm(columns, generator=generator)]
    x = torch.randn(4 * columns, columns, generator=generator) @ (torch.eye(columns) + 0.3 * mix)
    x = x * sizes
    return torch.randn(rows, columns, generator=generator), x.t() @ x


def solved_anew(weight: Tensor, hessian: Tensor, grid: Grid, group: int) -> Tensor:
    """What GPTQ's recurrence stands for: [N, K], dequantized."""
    h = hessian.double()
    h = h + torch.eye(len(h)) * DAMPING * h.diagonal().mean()
    scales = grid.fit(in_groups(weight, group), in_groups(hessian.diagonal(), group))
    order = hessian.diagonal().argsort(descending=True, stable=True).tolist()
    w, q = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for i, column in enumerate(order):
        done, left = order[:i], order[i:]
        lost = (w[:, done] - q[:, done]) @ h[done][:, left]
        best = w[:, left] + torch.linalg.solve(h[left][:, left], lost.t()).t()
        scale = scales.scale[:, column // group]
        zero = None if scales.zero is None else scales.zero[:, column // group]
        codes = grid.encode(best[:, 0].float(), scale, zero)
        q[:, column] = grid.decode(codes, scale, zero).double()
    return q.float()


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())
def test_equals_least_squares_after_every_column(grid: Grid) -> None:
    weight, hessian = layer(12, 32, seed=1)
    found = gptq(weight, hessian, grid, 16)
    expected = solved_anew(weight, hessian, grid, 16)
    nearest = round_to_nearest(weight, grid, 16)
    difference = expected - weight
    losses = ((difference @ hessian) * difference).sum(1)
    kept = losses <= row_losses(weight, nearest, hessian)
    assert kept.any()
    values = torch.where(kept.unsqueeze(1), expected, nearest.dequantize())
    torch.testing.assert_close(found.dequantize(), values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())
@pytest.mark.parametrize(("columns", "group"), [(64, 64), (64, 16), (192, 24), (320, 160)])
def test_no_row_is_further_than_rounding(
    grid: Grid, columns: int, group: int, act_order: bool
) -> None:
    weight, hessian = layer(24, columns, seed=columns)
    found = gptq(weight, hessian, grid, group, act_order=act_order)
    ours = row_losses(weight, found, hessian)
    theirs = row_losses(weight, round_to_nearest(weight, grid, group), hessian)
    assert bool((ours <= theirs * (1 + 1e-6)).all())
    assert float(ours.sum()) < 0.8 * float(theirs.sum())


def test_inputs_that_are_never_there() -> None:
    weight, hessian = layer(4, 16, seed=2)
    hessian[3] = hessian[:, 3] = 0.0
    found = gptq(weight, hessian, INT4, 16).dequantize()
    assert bool(torch.isfinite(found).all())
    assert float((found - weight)[:, 3].abs().max()) < 0.5, "the column is rounded, not dropped"
    nothing = gptq(weight, torch.zeros(16, 16), INT4, 16)
    torch.testing.assert_close(
        nothing.dequantize(), round_to_nearest(weight, INT4, 16).dequantize()
    )
