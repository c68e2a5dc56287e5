"""Native LayerNorm, and the norms on a pool of threads."""

import pytest
import torch
from torch import Tensor

from tests.kernels.fused_common import (
    COLS,
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

pytestmark = pytest.mark.matrix

EPS = 1e-5


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


@each_isa
@each_dtype
def test_layer_norm(isa: str, dtype: torch.dtype) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for cols in [*COLS, 768, 4096, *(pick(generator, 1, 4099) for _ in range(4))]:
        x = draw(generator, dtype, pick(generator, 1, 40), cols)
        weight, bias = draw(generator, dtype, cols), draw(generator, dtype, cols)
        y = kernels.layer_norm(x, weight, bias, EPS)
        assert_layer_normed(y, x, weight, bias)
        residual = draw(generator, dtype, *x.shape)
        z, total = kernels.add_layer_norm(x, residual, weight, bias, EPS)
        assert_same_bits(total, x + residual)
        assert_same_bits(z, kernels.layer_norm(total, weight, bias, EPS))


@each_isa
@each_dtype
def test_a_wide_weight_is_multiplied_before_the_only_rounding(isa: str, dtype: torch.dtype) -> None:
    """As in float32, then rounded: that arithmetic has its own tests."""
    kernels, generator = new_kernels(isa), new_generator()
    for cols in COLS:
        x, residual = draw(generator, dtype, 2, 9, cols)
        weight = 1 + draw(generator, torch.float32, cols)
        expected = kernels.rms_norm(x.float(), weight, EPS).to(dtype)
        assert_same_bits(kernels.rms_norm(x, weight, EPS), expected)
        z, total = kernels.add_rms_norm(x, residual, weight, EPS)
        assert_same_bits(total, x + residual)
        assert_same_bits(z, kernels.rms_norm(total.float(), weight, EPS).to(dtype))


@each_isa
@each_dtype
def test_a_large_mean_costs_no_digits(isa: str, dtype: torch.dtype) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    x = draw(generator, dtype, 5, 300) + 100
    weight, bias = draw(generator, dtype, 300), draw(generator, dtype, 300)
    assert_layer_normed(kernels.layer_norm(x, weight, bias, EPS), x, weight, bias)


@each_isa
@each_dtype
def test_a_row_knows_nothing_of_its_batch(isa: str, dtype: torch.dtype) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for cols in (1, 7, 65, 1000):
        x, residual = draw(generator, dtype, 2, 33, cols)
        weight, bias = draw(generator, dtype, 2, cols)
        y = kernels.layer_norm(x, weight, bias, EPS)
        z, _ = kernels.add_layer_norm(x, residual, weight, bias, EPS)
        for r in range(0, 33, 8):
            assert_same_bits(kernels.layer_norm(x[r], weight, bias, EPS), y[r])
        order = torch.randperm(33, generator=generator)[:9]
        again, _ = kernels.add_layer_norm(x[order], residual[order], weight, bias, EPS)
        assert_same_bits(again, z[order])


@each_dtype
def test_threads_do_not_matter(dtype: torch.dtype) -> None:
    generator = new_generator()
    x, residual = draw(generator, dtype, 2, 203, 1031)
    weight, bias = draw(generator, dtype, 2, 1031)
    plain, *others = pools()
    layer = plain.layer_norm(x, weight, bias, EPS)
    added, total = plain.add_layer_norm(x, residual, weight, bias, EPS)
    for kernels in others:
        assert_same_bits(kernels.layer_norm(x, weight, bias, EPS), layer)
        z, sums = kernels.add_layer_norm(x, residual, weight, bias, EPS)
        assert_same_bits(z, added)
        assert_same_bits(sums, total)
        assert_same_bits(kernels.rms_norm(x, weight, EPS), plain.rms_norm(x, weight, EPS))
        z, sums = kernels.add_rms_norm(x, residual, weight, EPS)
        assert_same_bits(z, plain.add_rms_norm(x, residual, weight, EPS)[0])
        assert_same_bits(sums, total)


@each_isa
@each_dtype
def test_rows_need_not_be_contiguous(isa: str, dtype: torch.dtype) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    wide = draw(generator, dtype, 5, 4, 192)
    for x in (wide[..., 64:128], wide[:, 1, :64], wide[..., ::3], wide[::2], wide[:0]):
        weight, bias = draw(generator, dtype, 2, x.shape[-1])
        expected = kernels.layer_norm(x.contiguous(), weight, bias, EPS)
        assert_same_bits(kernels.layer_norm(x, weight, bias, EPS), expected)
        assert_same_bits(kernels.add_layer_norm(x, x, weight, bias, EPS)[1], x + x)


@each_isa
def test_not_a_number_and_infinity_stay_in_their_row(isa: str) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    x, weight = draw(generator, torch.float32, 4, 77), draw(generator, torch.float32, 77)
    clean = kernels.layer_norm(x, weight, weight, EPS)
    x[1, 76], x[2, 3] = float("nan"), float("inf")
    y = kernels.layer_norm(x, weight, weight, EPS)
    assert bool(y[1:3].isnan().all())
    assert_same_bits(y[[0, 3]], clean[[0, 3]])


def test_what_does_not_fit_is_refused() -> None:
    kernels, x, weight = new_kernels(), torch.ones(2, 8), torch.ones(8)
    for bad in (torch.ones(7), torch.ones(1, 8), weight.half(), torch.ones(16)[::2]):
        with pytest.raises(ValueError, match="weight is"):
            kernels.layer_norm(x, bad, weight, EPS)
        with pytest.raises(ValueError, match="bias is"):
            kernels.layer_norm(x, weight, bad, EPS)
    for bad in (torch.ones(7), torch.ones(1, 8), weight.half(), torch.ones(16)[::2]):
        with pytest.raises(ValueError, match="weight is"):
            kernels.rms_norm(x, bad, EPS)
        with pytest.raises(ValueError, match="weight is"):
            kernels.add_rms_norm(x.bfloat16(), x.bfloat16(), bad, EPS)
    for bad in (torch.ones(3, 8), x.half()):
        with pytest.raises(ValueError, match="residual is"):
            kernels.add_layer_norm(x, bad, weight, weight, EPS)
