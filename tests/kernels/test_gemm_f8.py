"""Linear layers on weights of 8-bit floats, for every instruction set that this machine can run.

The oracle is float64 on the weight as torch reads its codes; weights are drawn at random afresh
at every run, and QUIRE_TEST_SEED=<seed from the report> repeats one.
"""

from typing import get_args

import pytest
import torch
from torch import Tensor

from quire.core.model_config import Activation
from quire.ops.native.kernels import Kernels, native_kernels
from quire.ops.packed_file import read_linears, write_linears
from quire.ops.weights import Epilogue
from tests.kernels.fused_common import draw, new_generator, pick
from tests.kernels.linear_common import assert_rows_are_their_own
from tests.native import ISAS, PackedLinear, QuantizedWeight, is_float8, pack_float8, pool_of

pytestmark = pytest.mark.matrix

CODES = [torch.float8_e4m3fn, torch.float8_e5m2]
GROUPS = (32, 64, 128, 256, 1 << 20)  # the last: a scale a row
EPS32, EPS_BF16 = 2.0**-24, 2.0**-8  # relative error of one rounding
SHAPES = [(1, 1), (3, 5), (31, 64), (33, 31), (97, 65), (160, 300), (65, 1023)]


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return native_kernels(request.param)


@pytest.fixture(params=CODES, ids=["e4m3", "e5m2"])
def codes(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    return new_generator()


def draw_weight(
    generator: torch.Generator, codes: torch.dtype, n: int, k: int, group: int
) -> QuantizedWeight:
    """Of all finite codes alike, so that a fifth of them are subnormal or large."""
    drawn = torch.randint(256, (n, k), generator=generator).to(torch.uint8).view(codes)
    values = drawn.float()
    drawn = torch.where(values.isfinite(), values, torch.zeros(())).to(codes)
    group = min(group, k)
    scale = draw(generator, torch.float32, n, -(-k // group)) / 100
    return QuantizedWeight(drawn, 8, scale, group)


def assert_linear(y: Tensor, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> None:
    """x is rounded to bfloat16, which is exact here; a sum of k products rounds k times, the
    scales twice a group, what is subnormal may count as zero."""
    w = (
        weight.codes.double()
        * weight.scale.double().repeat_interleave(weight.group, 1)[:, : weight.shape[1]]
    )
    shift = torch.zeros(1).double() if bias is None else bias.double()
    exact = x.double() @ w.t() + shift
    size = x.double().abs() @ w.abs().t() + shift.abs()
    bound = (weight.shape[1] + 2 * weight.scale.shape[1] + 4) * EPS32 * size + 1e-30
    if y.dtype == torch.bfloat16:
        bound = bound + EPS_BF16 * (exact.abs() + bound)
    error = (y.double() - exact).abs()
    assert y.shape == exact.shape
    assert bool((error <= bound).all()), float((error / bound).max())


def draw_x(generator: torch.Generator, rows: int, k: int) -> Tensor:
    return draw(generator, torch.bfloat16, rows, k).float()


@pytest.mark.parametrize("group", GROUPS)
def test_agrees_with_float64(
    kernels: Kernels, codes: torch.dtype, group: int, generator: torch.Generator
) -> None:
    for n, k in [*SHAPES, (pick(generator, 1, 200), pick(generator, 1, 600))]:
        bias = draw(generator, torch.float32, n) if n % 2 else None
        weight = draw_weight(generator, codes, n, k, group)
        linear = pack_float8(kernels, pool_of(2), weight, bias=bias)
        for rows in (1, 4, 13, pick(generator, 1, 50)):
            x = draw_x(generator, rows, k)
            assert_linear(linear.forward(x), x, weight, bias)
            assert_linear(linear.forward(x.bfloat16()), x, weight, bias)


@pytest.mark.parametrize("group", [64, 1 << 20])
def test_every_count_of_rows(
    kernels: Kernels, codes: torch.dtype, group: int, generator: torch.Generator
) -> None:
    """Rows 1 to 40, 130 and 260: right, and bit by bit what each row gives alone."""
    n, k = (70, 129) if pick(generator, 0, 1) else (64, 512)
    weight = draw_weight(generator, codes, n, k, group)
    linear = pack_float8(kernels, pool_of(2), weight)
    x = draw_x(generator, 260, k).bfloat16()
    y = linear.forward(x)
    assert_linear(y, x, weight, None)
    assert_rows_are_their_own(linear, x, y, (*range(1, 41), 130), generator)


def test_a_block_waits_for_the_results_of_the_one_before(
    kernels: Kernels, codes: torch.dtype, generator: torch.Generator
) -> None:
    """700 columns are panels of 12 steps at most; one thread has several blocks per task."""
    linear = pack_float8(kernels, pool_of(1), draw_weight(generator, codes, 512, 700, 128))
    x = draw_x(generator, 64, 700).bfloat16()
    halves = torch.cat([linear.forward(half) for half in x.split(32)])
    assert torch.equal(linear.forward(x), halves)


def test_threads_and_order_do_not_matter(
    kernels: Kernels, codes: torch.dtype, generator: torch.Generator
) -> None:
    weight = draw_weight(generator, codes, 321, 200, 64)
    one, two = (pack_float8(kernels, pool_of(t), weight) for t in (1, 2))
    for rows in (1, 7, 40, 150):
        x = draw_x(generator, rows, 200)
        y = one.forward(x)
        assert torch.equal(two.forward(x), y)
        order = torch.randperm(rows, generator=generator)
        assert torch.equal(two.forward(x[order]), y[order])


@pytest.mark.parametrize("rows", [1, 37])
def test_all_codes(kernels: Kernels, codes: torch.dtype, rows: int) -> None:
    """A column of x alone reads a code: exactly, infinity and NaN as such."""
    every = torch.arange(256, dtype=torch.uint8).view(codes)
    weight = QuantizedWeight(every.view(256, 1).contiguous(), 8, torch.ones(256, 1), 1)
    linear = pack_float8(kernels, pool_of(2), weight)
    expected = every.float()
    assert torch.equal(linear.unpack()[:, 0].nan_to_num(7), expected.nan_to_num(7))
    y = linear.forward(torch.full((rows, 1), 2.0))
    assert torch.equal(y.isnan(), expected.isnan().expand(rows, 256))
    assert torch.equal(y.nan_to_num(7), (2 * expected).nan_to_num(7).expand(rows, 256))
    ids = torch.tensor([1, 0x7E, 200, 7])
    assert torch.equal(linear.lookup(ids)[:, 0].nan_to_num(7), expected[ids].nan_to_num(7))


@pytest.mark.parametrize("epilogue", get_args(Activation))
def test_an_activation_is_applied_as_on_its_own(
    kernels: Kernels, epilogue: Epilogue, generator: torch.Generator
) -> None:
    weight = draw_weight(generator, torch.float8_e4m3fn, 90, 70, 32)
    bias = draw(generator, torch.float32, 90)
    pool = pool_of(2)
    plain = pack_float8(kernels, pool, weight, bias=bias)
    fused = pack_float8(kernels, pool, weight, bias=bias, epilogue=epilogue)
    # An identity of float32 with the epilogue is the operation on its own.
    alone = PackedLinear(kernels, pool, torch.eye(90), kind="f32", epilogue=epilogue)
    for rows in (1, 14):
        x = draw_x(generator, rows, 70)
        assert torch.equal(fused.forward(x), alone.forward(plain.forward(x)))


def test_rows_of_nothing_and_numbers_that_are_none(
    kernels: Kernels, codes: torch.dtype, generator: torch.Generator
) -> None:
    weight = draw_weight(generator, codes, 50, 70, 32)
    linear = pack_float8(kernels, pool_of(2), weight)
    for rows in (4, 20):
        x = draw_x(generator, rows, 70)
        clean = linear.forward(x)
        x[1, 69], x[2, 3] = float("nan"), float("inf")
        y = linear.forward(x)
        assert bool(y[1].isnan().all())
        assert not bool(y[2].isfinite().any())
        rest = [0, *range(3, rows)]
        assert torch.equal(y[rest], clean[rest])
    assert linear.forward(torch.zeros(0, 70)).shape == (0, 50)


@pytest.mark.parametrize("group", [32, 1 << 20])
def test_stored_weights_come_back(
    tmp_path, codes: torch.dtype, group: int, generator: torch.Generator
) -> None:
    weight = draw_weight(generator, codes, 45, 100, group)
    linear = pack_float8(
        native_kernels(), pool_of(2), weight, bias=draw(generator, torch.float32, 45)
    )
    with (tmp_path / "packed").open("w+b") as file:
        sum_written = write_linears(file.fileno(), 0, [linear.stored])
        (stored,), sum_read = read_linears(
            file.fileno(), 0, [linear.stored.shape], "float32", threads=2
        )
    assert sum_written == sum_read
    again = PackedLinear.from_stored(native_kernels(), pool_of(2), stored)
    x = draw_x(generator, 3, 100)
    assert again.kind == linear.kind
    assert again.group == linear.group
    assert torch.equal(again.forward(x), linear.forward(x))


def test_what_does_not_fit() -> None:
    one = torch.ones(2, 64).to(torch.float8_e4m3fn)
    assert is_float8(QuantizedWeight(one, 8, torch.ones(2, 1), 64))
    assert not is_float8(QuantizedWeight(one, 8, torch.ones(2, 4), 16))
    assert not is_float8(QuantizedWeight(one, 8, torch.ones(2, 1), 64, offset=torch.ones(2, 1)))
    assert not is_float8(QuantizedWeight(one.view(torch.uint8), 8, torch.ones(2, 1), 64))
    kernels = native_kernels()
    for codes, scale, group in (
        (one.float(), torch.ones(2, 1), 0),
        (one, torch.ones(2, 2), 0),
        (one, torch.ones(2, 1), 32),
        (one, torch.ones(2, 4), 16),
        (one[:0], torch.ones(0, 1), 0),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            PackedLinear.from_float8(kernels, pool_of(1), codes, scale, group=group)
