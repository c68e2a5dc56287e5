"""Native RMSNorm against a float64 oracle, on every instruction set this machine can run."""

import pytest
import torch
from torch import Tensor

from quire import _native
from quire.ops.native.kernels import available_isas, native_kernels
from tests.kernels.fused_common import (
    DTYPES,
    TINY,
    UNIT,
    assert_same_bits,
    draw,
    new_generator,
    new_kernels,
    pick,
)
from tests.native import ISAS, FusedKernels, view

pytestmark = pytest.mark.matrix

EPS = 1e-5
# Around every vector width and unrolled block, and the widths of real models.
COLS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 96, 127, 128, 257, 896, 1024, 4096]


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> FusedKernels:
    return new_kernels(request.param)


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    return new_generator()


def assert_normalized(y: Tensor, x: Tensor, weight: Tensor) -> None:
    """y is weight * x / rms(x), within the rounding errors that the kernel is allowed.

    Relative: one rounding to the dtype before the weight and one after it; the sum of squares adds
    at most cols / 16 terms one after another (4 accumulators of at least 4 lanes) and a few more
    across accumulators, of which the square root halves the error; the rest of the scale, and the
    two products, round 8 times in float32. Absolute: underflow at either rounding to the dtype.
    """
    exact_x, exact_weight = x.double(), weight.double()
    rms = torch.sqrt(exact_x.pow(2).mean(-1, keepdim=True) + EPS)
    exact = exact_weight * exact_x / rms
    relative = 2 * UNIT[x.dtype] + (x.shape[-1] / 32 + 4 + 8) * 2.0**-24
    # The errors compound, by less than the square of their sum.
    relative += relative**2
    absolute = TINY[x.dtype] * (exact_weight.abs() + 1)
    error = (y.double() - exact).abs()
    assert y.dtype == x.dtype
    assert bool((error <= relative * exact.abs() + absolute).all()), float(error.max())


def add_rms_norm_into(
    kernels: FusedKernels, y: Tensor, total: Tensor, x: Tensor, residual: Tensor, weight: Tensor
) -> None:
    """The native function itself, with dense rows."""
    _native.add_rms_norm(
        _native.table(kernels.isa), _native.Pool(1), view(y), view(total), view(x),
        view(residual), view(weight), EPS,
    )  # fmt: skip


def test_rms_norm(kernels: FusedKernels, dtype: torch.dtype, generator: torch.Generator) -> None:
    for cols in [*COLS, *(pick(generator, 1, 4099) for _ in range(8))]:
        x = draw(generator, dtype, pick(generator, 1, 70), cols)
        weight = draw(generator, dtype, cols)
        assert_normalized(kernels.rms_norm(x, weight, EPS), x, weight)


def test_add_rms_norm(
    kernels: FusedKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    for cols in [*COLS, *(pick(generator, 1, 4099) for _ in range(8))]:
        x = draw(generator, dtype, pick(generator, 1, 70), cols)
        residual, weight = draw(generator, dtype, *x.shape), draw(generator, dtype, cols)
        y, total = kernels.add_rms_norm(x, residual, weight, EPS)
        assert_same_bits(total, x + residual)
        assert_normalized(y, total, weight)
        assert_same_bits(y, kernels.rms_norm(total, weight, EPS))


@pytest.mark.parametrize("scale", [1e-4, 1e3])
def test_far_from_one(
    kernels: FusedKernels, dtype: torch.dtype, generator: torch.Generator, scale: float
) -> None:
    x, weight = draw(generator, dtype, 5, 300) * scale, draw(generator, dtype, 300)
    assert_normalized(kernels.rms_norm(x, weight, EPS), x, weight)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_every_16_bit_value_is_read_and_rounded_right(
    kernels: FusedKernels, narrow: torch.dtype, generator: torch.Generator
) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(narrow).view(64, 1024)
    weight = torch.ones(1024, dtype=narrow)
    shuffled = x.flatten()[torch.randperm(x.numel(), generator=generator)].view_as(x)
    for residual in (torch.zeros_like(x), shuffled, draw(generator, narrow, *x.shape)):
        assert_same_bits(kernels.add_rms_norm(x, residual, weight, EPS)[1], x + residual)


def test_a_row_knows_nothing_of_its_batch(
    kernels: FusedKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    for cols in (1, 7, 65, 1000, 4099):
        x, residual = draw(generator, dtype, 33, cols), draw(generator, dtype, 33, cols)
        weight = draw(generator, dtype, cols)
        y = kernels.rms_norm(x, weight, EPS)
        z, total = kernels.add_rms_norm(x, residual, weight, EPS)
        for r in range(33):
            assert_same_bits(kernels.rms_norm(x[r], weight, EPS), y[r])
        order = torch.randperm(33, generator=generator)[:9]
        assert_same_bits(kernels.rms_norm(x[order], weight, EPS), y[order])
        again, total_again = kernels.add_rms_norm(x[order], residual[order], weight, EPS)
        assert_same_bits(again, z[order])
        assert_same_bits(total_again, total[order])


def test_not_a_number_and_infinity_stay_in_their_row(
    kernels: FusedKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, weight = draw(generator, dtype, 4, 77), draw(generator, dtype, 77)
    clean = kernels.rms_norm(x, weight, EPS)
    x[1, 76], x[2, 3] = float("nan"), float("inf")
    y = kernels.rms_norm(x, weight, EPS)
    assert bool(y[1].isnan().all())
    assert bool(y[2, 3].isnan())  # inf * 0
    assert bool((y[2, 4:] == 0).all())
    assert_same_bits(y[[0, 3]], clean[[0, 3]])


def test_results_may_replace_the_inputs(
    kernels: FusedKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    x, residual = draw(generator, dtype, 6, 131), draw(generator, dtype, 6, 131)
    weight = draw(generator, dtype, 131)
    y, total = kernels.add_rms_norm(x, residual, weight, EPS)
    for swap in (False, True):
        a, b = x.clone(), residual.clone()
        out, residual_out = (b, a) if swap else (a, b)
        add_rms_norm_into(kernels, out, residual_out, a, b, weight)
        assert_same_bits(out, y)
        assert_same_bits(residual_out, total)


def test_nothing_outside_the_result_is_written(
    kernels: FusedKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    for cols in (1, 3, 7, 9, 15, 17, 63, 65, 100):
        x, weight = draw(generator, dtype, 3, cols), draw(generator, dtype, cols)
        room = torch.full((2, 3 * cols + 64), 7.0, dtype=dtype)
        y, total = (half[32:-32].view(3, cols) for half in room)
        add_rms_norm_into(kernels, y, total, x, x, weight)
        assert bool((room[:, :32] == 7).all())
        assert bool((room[:, -32:] == 7).all())


def test_rows_need_not_be_contiguous(
    kernels: FusedKernels, dtype: torch.dtype, generator: torch.Generator
) -> None:
    wide, weight = draw(generator, dtype, 5, 4, 3 * 64), draw(generator, dtype, 64)
    for x in (wide[..., 64:128], wide[:, 1, :64], wide[0, :, 128:], wide[..., ::3], wide[::2]):
        w = weight if x.shape[-1] == 64 else draw(generator, dtype, x.shape[-1])
        y, total = kernels.add_rms_norm(x, x, w, EPS)
        assert_same_bits(kernels.rms_norm(x, w, EPS), kernels.rms_norm(x.contiguous(), w, EPS))
        assert_same_bits(total, x + x)
        assert_normalized(y, total, w)


def test_no_rows_are_no_work(kernels: FusedKernels, dtype: torch.dtype) -> None:
    x, weight = torch.empty(0, 3, 8, dtype=dtype), torch.ones(8, dtype=dtype)
    assert kernels.rms_norm(x, weight, EPS).shape == x.shape
    assert [t.shape for t in kernels.add_rms_norm(x, x, weight, EPS)] == [x.shape, x.shape]


def test_what_the_kernels_cannot_do_is_refused() -> None:
    kernels, x, weight = new_kernels(), torch.ones(2, 8), torch.ones(8)
    for bad in (x.double(), torch.tensor(1.0), torch.ones(2, 0)):
        with pytest.raises(ValueError, match="x is"):
            kernels.rms_norm(bad, weight, EPS)
    for bad in (
        torch.ones(7),
        torch.ones(1, 8),
        weight.half(),
        torch.ones(16)[::2],
    ):
        with pytest.raises(ValueError, match="weight is"):
            kernels.rms_norm(x, bad, EPS)
    for bad in (torch.ones(3, 8), x.half()):
        with pytest.raises(ValueError, match="residual is"):
            kernels.add_rms_norm(x, bad, weight, EPS)


def test_a_forced_isa_is_used_or_refused() -> None:
    for isa in available_isas():
        assert native_kernels(isa).isa == isa
    with pytest.raises(ValueError, match=f"'sse9'; available here: {', '.join(available_isas())}"):
        native_kernels("sse9")
