"""GPTQ against least squares solved anew, in float64, after every column."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.dtypes import FLOAT32, Floats
from quire.quantize.awq import search_scale
from quire.quantize.gptq import DAMPING, _inverse_factor, gptq, row_losses
from quire.quantize.grid import Grid, fit, round_to_nearest

INT4 = Grid("int", 4, scale_dtype=FLOAT32)
GRIDS = {
    "int4": INT4,
    "int4 asymmetric": Grid("int", 4, symmetric=False, scale_dtype=FLOAT32),
    "int8": Grid("int", 8, scale_dtype=FLOAT32),
    "fp8": Grid("float8", 8, scale_dtype=FLOAT32),
}


def layer(rows: int, columns: int, seed: int) -> tuple[Floats, Floats]:
    """A weight, and second moments of inputs that are correlated and differ in size."""
    random = np.random.default_rng(seed)
    mix = np.eye(columns) + 0.3 * random.standard_normal((columns, columns))
    sizes = random.permutation(np.linspace(0.1, 3.0, columns))
    x = (random.standard_normal((4 * columns, columns)) @ mix * sizes).astype(np.float32)
    return random.standard_normal((rows, columns), np.float32), x.T @ x


def solved_anew(weight: Floats, hessian: Floats, grid: Grid, group: int) -> Floats:
    """What GPTQ's recurrence stands for: [N, K], dequantized."""
    h = hessian.astype(np.float64)
    h += np.eye(len(h)) * DAMPING * h.diagonal().mean()
    scales = fit(weight, grid, group, hessian.diagonal())
    order = np.argsort(-hessian.diagonal(), kind="stable").tolist()
    w, q = weight.astype(np.float64), np.zeros(weight.shape)
    for i, column in enumerate(order):
        done, left = order[:i], order[i:]
        lost = (w[:, done] - q[:, done]) @ h[np.ix_(done, left)]
        best = w[:, left] + np.linalg.solve(h[np.ix_(left, left)], lost.T).T
        scale = scales.scale[:, column // group]
        zero = None if scales.zero is None else scales.zero[:, column // group]
        codes = grid.encode(best[:, 0].astype(np.float32), scale, zero)
        q[:, column] = grid.decode(codes, scale, zero)
    return q.astype(np.float32)


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
    values = np.where(kept[:, np.newaxis], expected, nearest.dequantize())
    np.testing.assert_allclose(found.dequantize(), values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("columns", [5, 300])
def test_the_factor_of_an_inverse(columns: int) -> None:
    """In float64, rounded once to float32: of one block of columns and of several."""
    _, hessian = layer(1, columns, seed=3)
    factor = _inverse_factor(hessian).astype(np.float64)
    wide = hessian.astype(np.float64)
    damped = wide + np.eye(columns) * DAMPING * wide.diagonal().mean()
    expected = np.linalg.cholesky(np.linalg.inv(damped)).T
    np.testing.assert_allclose(factor, expected, rtol=2.0**-24, atol=1e-10 * expected.max())


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
    assert (ours <= theirs * (1 + 1e-6)).all()
    assert ours.sum() < 0.8 * theirs.sum()


def test_products_of_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hessian = layer(24, 320, seed=4)

    def halves(scaled: Floats) -> Floats:
        return np.rint(scaled * 2) / 2

    found = gptq(weight, hessian, INT4, 32)
    losses = row_losses(weight, found, hessian)
    scale = search_scale([weight], [hessian], np.sqrt(hessian.diagonal()), halves)
    monkeypatch.setattr("quire.quantize.gptq._ROWS", 7)
    monkeypatch.setattr("quire.quantize.awq._ROWS", 7)
    assert np.array_equal(gptq(weight, hessian, INT4, 32).dequantize(), found.dequantize())
    np.testing.assert_allclose(row_losses(weight, found, hessian), losses, rtol=1e-5)
    again = search_scale([weight], [hessian], np.sqrt(hessian.diagonal()), halves)
    assert np.array_equal(again, scale)
    assert not (scale == 1).all()


def test_inputs_that_are_never_there() -> None:
    weight, hessian = layer(4, 16, seed=2)
    hessian[3] = hessian[:, 3] = 0.0
    found = gptq(weight, hessian, INT4, 16).dequantize()
    assert np.isfinite(found).all()
    assert np.abs((found - weight)[:, 3]).max() < 0.5, "the column is rounded, not dropped"
    nothing = gptq(weight, np.zeros((16, 16), np.float32), INT4, 16)
    nearest = round_to_nearest(weight, INT4, 16)
    np.testing.assert_allclose(nothing.dequantize(), nearest.dequantize())
