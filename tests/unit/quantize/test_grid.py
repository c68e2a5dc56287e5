"""Grids: what they hold, how far rounding goes, and what their edges do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.quantize.grid import Grid, in_groups, quantize_with, round_to_nearest

GRIDS = [
    Grid("int", 4, scale_dtype=torch.float32),
    Grid("int", 4, symmetric=False),
    Grid("int", 8),
    Grid("int", 8, scale_dtype=torch.float16),
]


@pytest.mark.parametrize("grid", GRIDS)
def test_rounding_is_within_half_a_step(grid: Grid) -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    found = round_to_nearest(weight, grid, 32)
    step = found.scale.repeat_interleave(32, dim=1)
    # Scales are rounded to their dtype, 2⁻⁹ off at most, which moves the largest of 127 steps.
    off = (found.dequantize() - weight).abs() / step
    assert float(off.max()) <= 0.5 + (0.3 if grid.bits == 8 else 0.04)
    assert bool((found.scale == found.scale.to(grid.scale_dtype).float()).all())


def test_fp8_is_torchs_rounding() -> None:
    weight = torch.randn(4, 32, generator=torch.Generator().manual_seed(1))
    found = round_to_nearest(weight, Grid("float8", 8, scale_dtype=torch.float32), 32)
    scale = weight.abs().amax(1, keepdim=True) / 448.0
    assert torch.equal(found.dequantize(), (weight / scale).to(torch.float8_e4m3fn).float() * scale)


@pytest.mark.parametrize("grid", [*GRIDS, Grid("float8", 8)])
@given(magnitude=st.sampled_from([0.0, 1e-30, 1e-7, 1.0, 3e4]))
def test_any_magnitude_is_finite(grid: Grid, magnitude: float) -> None:
    weight = torch.full((2, 16), magnitude)
    weight[1, 3] = -magnitude
    values = round_to_nearest(weight, grid, 8).dequantize()
    assert bool(torch.isfinite(values).all())
    least = 2.0**-24 if grid.scale_dtype == torch.float16 else 0.0
    assert float((values - weight).abs().max()) <= magnitude * 0.07 + least


@pytest.mark.parametrize("grid", GRIDS)
def test_importance_never_costs_more(grid: Grid) -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(16, 64, generator=generator)
    weight[:, 5] *= 6.0
    importance = in_groups(torch.rand(64, generator=generator), 32)
    importance[0, 5] = 1e-3

    def cost(scales: object) -> torch.Tensor:
        error = quantize_with(weight, grid, 32, scales).dequantize() - weight  # type: ignore[arg-type]
        return (in_groups(error, 32).square() * importance).sum(-1)

    groups = in_groups(weight, 32)
    plain, fitted = cost(grid.fit(groups)), cost(grid.fit(groups, importance))
    assert bool((fitted <= plain * (1 + 1e-5)).all())
    if grid.bits == 4:
        assert float(fitted.sum()) < 0.9 * float(plain.sum())
