"""Native RMSNorm and LayerNorm, also of sums, against float64 oracles on every instruction set."""

from typing import Any

import pytest
import torch
from torch import Tensor

from quire import _native
from tests.kernels.fused_common import (
    COLS,
    TINY,
    UNIT,
    U,
    assert_close,
    assert_same_bits,
    draw,
    each_dtype,
    each_isa,
    new_generator,
    new_kernels,
    pick,
    pools,
)
from tests.native import FusedKernels, view

pytestmark = pytest.mark.matrix

EPS = 1e-5

each_norm = pytest.mark.parametrize("norm", ["rms", "wide", "layer"])
"""RMSNorm, with a weight of the rows' dtype or of float32; and LayerNorm."""


def weights_of(
    norm: str, generator: torch.Generator, dtype: torch.dtype, cols: int
) -> list[Tensor]:
    """A weight, and LayerNorm's bias."""
    if norm == "wide":
        return [1 + draw(generator, torch.float32, cols)]
    return [draw(generator, dtype, cols) for _ in range(2 if norm == "layer" else 1)]


def normed(kernels: FusedKernels, x: Tensor, weights: list[Tensor]) -> Tensor:
    op = kernels.rms_norm if len(weights) == 1 else kernels.layer_norm
    return op(x, *weights, EPS)


def sum_normed(
    kernels: FusedKernels, x: Tensor, residual: Tensor, weights: list[Tensor]
) -> tuple[Tensor, Tensor]:
    op = kernels.add_rms_norm if len(weights) == 1 else kernels.add_layer_norm
    return op(x, residual, *weights, EPS)


def sum_normed_into(kernels: FusedKernels, *rows: Tensor, weights: list[Tensor]) -> None:
    """The native function itself, on dense rows: y, the sum, x and the residual."""
    op: Any = _native.add_rms_norm if len(weights) == 1 else _native.add_layer_norm
    op(_native.table(kernels.isa), _native.Pool(1), *map(view, (*rows, *weights)), EPS)


def assert_rms_normed(y: Tensor, x: Tensor, weight: Tensor) -> None:
    """y is weight * x / rms(x), within the rounding errors that the kernel is allowed.

    Relative: one rounding to the dtype before the weight and one after it; the sum of squares adds
    at most cols / 16 terms one after another (4 accumulators of at least 4 lanes) and a few more
    across accumulators, of which the square root halves the error; the rest of the scale, and the
    two products, round 8 times in float32. Absolute: underflow at either rounding to the dtype.
    """
    exact_x, exact_weight = x.double(), weight.double()
    rms = torch.sqrt(exact_x.pow(2).mean(-1, keepdim=True) + EPS)
    exact = exact_weight * exact_x / rms
    relative = 2 * UNIT[x.dtype] + (x.shape[-1] / 32 + 4 + 8) * U
    # The errors compound, by less than the square of their sum.
    relative += relative**2
    absolute = TINY[x.dtype] * (exact_weight.abs() + 1)
    error = (y.double() - exact).abs()
    assert y.dtype == x.dtype
    assert bool((error <= relative * exact.abs() + absolute).all()), float(error.max())


def assert_layer_normed(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """y is (x - mean) / sqrt(variance + eps) · weight + bias, within the kernel's roundings.

    A sum of n terms adds at most n / 16 of them one after another (4 accumulators of at least 4
    lanes) and then a few: n / 16 + 5 units of the sum of the absolute values. So the mean is off
    by that much of mean |x|, which shifts every element by as much over the deviation. The
    variance is off by n / 16 + 8 units (a difference and a square more) and by the square of
    that shift; the square root halves it. Division, root and reciprocal: 3 units. Then difference,
    product, product and sum: 3 units of the product and one of the result.
    """
    exact, exact_weight, exact_bias = x.double(), weight.double(), bias.double()
    n = x.shape[-1]
    centred = exact - exact.mean(-1, keepdim=True)
    deviation = torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + EPS)
    scaled = exact_weight * centred / deviation
    wanted = scaled + exact_bias
    shift = (n / 16 + 6) * U * exact.abs().mean(-1, keepdim=True) / deviation
    relative = ((n / 16 + 8) / 2 + 3 + 3) * U + shift**2
    error = relative * scaled.abs() + shift * exact_weight.abs() * (1 + relative)
    error += U * (wanted.abs() + error)
    assert_close(y, wanted, error)


def assert_normed(
    norm: str, kernels: FusedKernels, y: Tensor, x: Tensor, weights: list[Tensor]
) -> None:
    if norm == "wide":  # as in float32, then rounded: that arithmetic has its own oracle
        assert_same_bits(y, normed(kernels, x.float(), weights).to(x.dtype))
    else:
        {"rms": assert_rms_normed, "layer": assert_layer_normed}[norm](y, x, *weights)


@each_isa
@each_dtype
@each_norm
def test_norms(isa: str, dtype: torch.dtype, norm: str) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for cols in [*COLS, 128, 768, 4096, *(pick(generator, 1, 4099) for _ in range(4))]:
        x = draw(generator, dtype, pick(generator, 1, 50), cols)
        residual = draw(generator, dtype, *x.shape)
        weights = weights_of(norm, generator, dtype, cols)
        assert_normed(norm, kernels, normed(kernels, x, weights), x, weights)
        y, total = sum_normed(kernels, x, residual, weights)
        assert_same_bits(total, x + residual)
        assert_same_bits(y, normed(kernels, total, weights))


@each_isa
@each_dtype
@each_norm
@pytest.mark.parametrize(("scale", "mean"), [(1e-4, 0), (1e3, 0), (1, 100)])
def test_far_from_one(isa: str, dtype: torch.dtype, norm: str, scale: float, mean: float) -> None:
    """A large mean costs LayerNorm no digits."""
    kernels, generator = new_kernels(isa), new_generator()
    x = draw(generator, dtype, 5, 300) * scale + mean
    weights = weights_of(norm, generator, dtype, 300)
    assert_normed(norm, kernels, normed(kernels, x, weights), x, weights)


@each_isa
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_every_16_bit_value_is_read_and_rounded_right(isa: str, narrow: torch.dtype) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(narrow).view(64, 1024)
    weight = torch.ones(1024, dtype=narrow)
    shuffled = x.flatten()[torch.randperm(x.numel(), generator=generator)].view_as(x)
    for residual in (torch.zeros_like(x), shuffled, draw(generator, narrow, *x.shape)):
        assert_same_bits(kernels.add_rms_norm(x, residual, weight, EPS)[1], x + residual)


@each_isa
@each_dtype
@each_norm
def test_a_row_knows_nothing_of_its_batch(isa: str, dtype: torch.dtype, norm: str) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for cols in (1, 7, 65, 1000, 4099):
        x, residual = draw(generator, dtype, 2, 33, cols)
        weights = weights_of(norm, generator, dtype, cols)
        y = normed(kernels, x, weights)
        z, total = sum_normed(kernels, x, residual, weights)
        for r in range(0, 33, 4):
            assert_same_bits(normed(kernels, x[r], weights), y[r])
        order = torch.randperm(33, generator=generator)[:9]
        assert_same_bits(normed(kernels, x[order], weights), y[order])
        again, total_again = sum_normed(kernels, x[order], residual[order], weights)
        assert_same_bits(again, z[order])
        assert_same_bits(total_again, total[order])


@each_dtype
@each_norm
def test_threads_do_not_matter(dtype: torch.dtype, norm: str) -> None:
    generator = new_generator()
    x, residual = draw(generator, dtype, 2, 203, 1031)
    weights = weights_of(norm, generator, dtype, 1031)
    plain, *others = pools()
    y, (z, total) = normed(plain, x, weights), sum_normed(plain, x, residual, weights)
    for kernels in others:
        assert_same_bits(normed(kernels, x, weights), y)
        again, total_again = sum_normed(kernels, x, residual, weights)
        assert_same_bits(again, z)
        assert_same_bits(total_again, total)


@each_isa
@each_dtype
@each_norm
def test_not_a_number_and_infinity_stay_in_their_row(
    isa: str, dtype: torch.dtype, norm: str
) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    x, weights = draw(generator, dtype, 4, 77), weights_of(norm, generator, dtype, 77)
    clean = normed(kernels, x, weights)
    x[1, 76], x[2, 3] = float("nan"), float("inf")
    y = normed(kernels, x, weights)
    assert bool(y[1].isnan().all())
    assert bool(y[2, 3].isnan())  # inf * 0
    assert bool((y[2, 4:].isnan() if norm == "layer" else y[2, 4:] == 0).all())
    assert_same_bits(y[[0, 3]], clean[[0, 3]])


@each_isa
@each_dtype
@each_norm
def test_results_may_replace_the_inputs(isa: str, dtype: torch.dtype, norm: str) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    x, residual = draw(generator, dtype, 2, 6, 131)
    weights = weights_of(norm, generator, dtype, 131)
    y, total = sum_normed(kernels, x, residual, weights)
    for swap in (False, True):
        a, b = x.clone(), residual.clone()
        out, residual_out = (b, a) if swap else (a, b)
        sum_normed_into(kernels, out, residual_out, a, b, weights=weights)
        assert_same_bits(out, y)
        assert_same_bits(residual_out, total)


@each_isa
@each_dtype
@each_norm
def test_nothing_outside_the_result_is_written(isa: str, dtype: torch.dtype, norm: str) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for cols in (1, 3, 7, 9, 15, 17, 63, 65, 100):
        x, weights = draw(generator, dtype, 3, cols), weights_of(norm, generator, dtype, cols)
        room = torch.full((2, 3 * cols + 64), 7.0, dtype=dtype)
        y, total = (half[32:-32].view(3, cols) for half in room)
        sum_normed_into(kernels, y, total, x, x, weights=weights)
        assert bool((room[:, :32] == 7).all())
        assert bool((room[:, -32:] == 7).all())


@each_isa
@each_dtype
@each_norm
def test_rows_need_not_be_contiguous(isa: str, dtype: torch.dtype, norm: str) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    wide = draw(generator, dtype, 5, 4, 192)
    for x in (
        wide[..., 64:128], wide[:, 1, :64], wide[0, :, 128:], wide[..., ::3], wide[::2], wide[:0],
    ):  # fmt: skip
        weights = weights_of(norm, generator, dtype, x.shape[-1])
        assert_same_bits(normed(kernels, x, weights), normed(kernels, x.contiguous(), weights))
        y, total = sum_normed(kernels, x, x, weights)
        assert_same_bits(total, x + x)
        assert_same_bits(y, normed(kernels, total, weights))
        assert y.shape == x.shape


def test_what_the_kernels_cannot_do_is_refused() -> None:
    kernels, x, weight = new_kernels(), torch.ones(2, 8), torch.ones(8)
    for weights in ([weight], [weight, weight]):
        for bad in (x.double(), torch.tensor(1.0), torch.ones(2, 0)):
            with pytest.raises(ValueError, match="x is"):
                normed(kernels, bad, weights)
        for bad in (torch.ones(7), torch.ones(1, 8), weight.half(), torch.ones(16)[::2]):
            with pytest.raises(ValueError, match="weight is"):
                normed(kernels, x, [bad, *weights[1:]])
        for bad in (torch.ones(3, 8), x.half()):
            with pytest.raises(ValueError, match="residual is"):
                sum_normed(kernels, x, bad, weights)
    for bad in (torch.ones(7), weight.half()):
        with pytest.raises(ValueError, match="bias is"):
            kernels.layer_norm(x, weight, bad, EPS)
    for bad in (torch.ones(7), weight.half(), weight.double()):
        with pytest.raises(ValueError, match="weight is"):
            kernels.add_rms_norm(x.bfloat16(), x.bfloat16(), bad, EPS)
