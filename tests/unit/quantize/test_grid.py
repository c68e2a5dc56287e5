"""Grids: what they hold, how far rounding goes, and what their edges do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.dtypes import FLOAT8_E4M3, FLOAT32, Floats, dtype_of
from quire.core.quantized import QuantizedWeight
from quire.quantize.grid import Grid, in_groups, round_to_nearest

GRIDS = [
    Grid("int", 4, scale_dtype=FLOAT32),
    Grid("int", 4, symmetric=False),
    Grid("int", 8),
    Grid("int", 8, scale_dtype=dtype_of("float16")),
]


def normal(rows: int, columns: int) -> Floats:
    return np.random.default_rng(0).standard_normal((rows, columns), np.float32)


@pytest.mark.parametrize("grid", GRIDS)
def test_rounding_is_within_half_a_step(grid: Grid) -> None:
    weight = normal(8, 64)
    found = round_to_nearest(weight, grid, 32)
    step = np.repeat(found.scale, 32, axis=1)
    # Scales are rounded to their dtype, 2⁻⁹ off at most, which moves the largest of 127 steps.
    off = np.abs(found.dequantize() - weight) / step
    assert off.max() <= 0.5 + (0.3 if grid.bits == 8 else 0.04)
    assert (found.scale == found.scale.astype(grid.scale_dtype).astype(np.float32)).all()


def test_fp8_is_rounded_to_nearest() -> None:
    weight = normal(4, 32)
    found = round_to_nearest(weight, Grid("float8", 8, scale_dtype=FLOAT32), 32)
    scale = np.abs(weight).max(1, keepdims=True) / np.float32(448)
    codes = (weight / scale).astype(FLOAT8_E4M3)
    assert np.array_equal(found.codes.view(np.uint8), codes.view(np.uint8))
    assert np.array_equal(found.dequantize(), codes.astype(np.float32) * scale)


@pytest.mark.parametrize("grid", [*GRIDS, Grid("float8", 8)])
@given(magnitude=st.sampled_from([0.0, 1e-30, 1e-7, 1.0, 3e4]))
def test_any_magnitude_is_finite(grid: Grid, magnitude: float) -> None:
    weight = np.full((2, 16), magnitude, np.float32)
    weight[1, 3] = -magnitude
    values = round_to_nearest(weight, grid, 8).dequantize()
    assert np.isfinite(values).all()
    least = 2.0**-24 if grid.scale_dtype == np.float16 else 0.0
    assert np.abs(values - weight).max() <= magnitude * 0.07 + least


@pytest.mark.parametrize("grid", [*GRIDS, Grid("float8", 8)])
def test_rows_in_chunks(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, importance = normal(37, 64), np.square(normal(1, 64)[0])
    at_once = round_to_nearest(weight, grid, 32, importance)
    monkeypatch.setattr("quire.quantize.grid._CHUNK", 64 * 5)
    by_rows = round_to_nearest(weight, grid, 32, importance)
    assert np.array_equal(by_rows.dequantize(), at_once.dequantize())


@pytest.mark.parametrize("grid", GRIDS)
def test_importance_never_costs_more(grid: Grid) -> None:
    weight = normal(16, 64)
    weight[:, 5] *= 6.0
    importance = np.random.default_rng(2).random(64, np.float32)
    importance[5] = 1e-3

    def cost(found: QuantizedWeight) -> Floats:
        error = found.dequantize() - weight
        return in_groups(np.square(error) * importance, 32).sum(-1)

    plain = cost(round_to_nearest(weight, grid, 32))
    fitted = cost(round_to_nearest(weight, grid, 32, importance))
    assert (fitted <= plain * (1 + 1e-5)).all()
    if grid.bits == 4:
        assert fitted.sum() < 0.9 * plain.sum()
