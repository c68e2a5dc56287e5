"""Linear layers on packed weights of every kind, for every instruction set of this machine."""

import random
from functools import partial
from typing import get_args

import pytest
import torch
from torch import Tensor

from quire.core.dtypes import BFLOAT16
from quire.core.model_config import Activation
from quire.ops.memory import empty
from quire.ops.native.gemm import WeightKind
from quire.ops.native.kernels import Kernels, native_kernels
from quire.ops.weights import Epilogue
from tests.arrays import tensor
from tests.isas import ISAS
from tests.kernels.fused_common import draw, pick
from tests.kernels.products import (
    DENSE,
    KINDS,
    SHAPES,
    assert_rows_are_their_own,
    product,
)
from tests.native import FusedKernels, PackedLinear, pool_of

pytestmark = pytest.mark.matrix

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

dense_kinds = pytest.mark.parametrize("kind", DENSE)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=DTYPES, ids=["f32", "bf16", "f16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def test_agrees_with_float64(
    kernels: Kernels, kind: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    for turn, (n, k) in enumerate([*SHAPES, (pick(generator, 1, 200), pick(generator, 1, 700))]):
        bias = draw(generator, torch.float32, n) if n % 2 else None
        weight = product(kernels, generator, kind, n, k, turn=turn, source=random.choice(DTYPES))
        linear = weight.pack(kernels, pool_of(2), bias=bias)
        for rows in (1, 2, 15, 16, 17, 32, 33, pick(generator, 1, 70)):
            x = draw(generator, dtype, rows, k)
            weight.check(linear.forward(x), x, bias)
            if rows in (1, 17):
                other = random.choice([d for d in DTYPES if d != dtype])
                weight.check(linear.forward(x, dtype=other), x, bias)


def test_every_count_of_rows(
    kernels: Kernels, kind: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Rows 1 to 70, 300 and 700 (none of 700 where tiles are emulated, which is slow): right, and
    bit by bit what each row gives alone."""
    most = 301 if kernels.isa.endswith("_emulated") else 700
    few = (1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 64, 70, 300)
    wide = 1024 if kind in DENSE else 256
    for turn, (n, k, counts) in enumerate(((70, 129, (*range(1, 71), 300)), (64, wide, few))):
        weight = product(kernels, generator, kind, n, k, turn=turn, source=dtype)
        linear, x = weight.pack(kernels, pool_of(2)), draw(generator, dtype, most, k)
        y = linear.forward(x)
        weight.check(y, x)
        assert_rows_are_their_own(linear, x, y, counts, generator)


def test_threads_and_order_do_not_matter(
    kernels: Kernels, kind: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    bias = draw(generator, dtype, 321)
    weight = product(kernels, generator, kind, 321, 200, source=dtype)
    one, two = (weight.pack(kernels, pool_of(threads), bias=bias) for threads in (1, 2))
    assert torch.equal(one.unpack(), two.unpack())
    for rows in (1, 7, 40, 300):
        x = draw(generator, dtype, rows, 200)
        y = one.forward(x)
        assert torch.equal(two.forward(x), y)
        order = torch.randperm(rows, generator=generator)
        assert torch.equal(two.forward(x[order]), y[order])


@pytest.mark.parametrize("columns", [700, 1500, 2600])
def test_blocks_of_several_panels(
    kernels: Kernels, kind: str, columns: int, generator: torch.Generator
) -> None:
    """Where tiles read W in panels of 12 to 16 steps: several blocks per task, 57 rows and more."""
    rows = 64 if kernels.isa.endswith("_emulated") else 130
    weight = product(kernels, generator, kind, 160, columns, source=torch.bfloat16)
    linear, x = weight.pack(kernels, pool_of(1)), draw(generator, torch.bfloat16, rows, columns)
    y = linear.forward(x)
    weight.check(y, x)
    assert_rows_are_their_own(linear, x, y, (33, 57, 64), generator)


@pytest.mark.parametrize("epilogue", ["none", "relu", "silu_mul"])
@pytest.mark.parametrize("columns", [4096, 4112, 3872])
@dense_kinds
def test_results_past_the_caches(
    kernels: Kernels,
    kind: WeightKind,
    columns: int,
    epilogue: Epilogue,
    generator: torch.Generator,
) -> None:
    """Results of 2 MiB and more, in whole lines and not: 32 columns are a line of bfloat16.

    Of 3872 columns with a gate, four threads get 7 blocks per task: some begin within a line.
    """
    if kernels.isa.endswith("_emulated"):
        pytest.skip("takes a million emulated instructions")
    sides = 2 if epilogue.endswith("mul") else 1
    weight = draw(generator, torch.bfloat16, sides, columns, 64)
    x = draw(generator, torch.bfloat16, 300, 64)
    whole = tensor(empty((300, columns), BFLOAT16))  # begins at a line, as in an engine

    linear = PackedLinear(kernels, pool_of(4), weight.reshape(-1, 64), kind=kind, epilogue=epilogue)
    linear.forward(x, out=whole)
    assert torch.equal(whole, torch.cat([linear.forward(x[i : i + 100]) for i in (0, 100, 200)]))


@dense_kinds
def test_many_columns_are_cut_into_cache_blocks(
    kernels: Kernels, kind: str, generator: torch.Generator
) -> None:
    weight = product(kernels, generator, kind, 40, 9001, source=torch.bfloat16)
    linear, x = weight.pack(kernels, pool_of(2)), draw(generator, torch.bfloat16, 150, 9001)
    y = linear.forward(x)
    weight.check(y, x)
    assert torch.equal(linear.forward(x[130:]), y[130:])


def test_s8_is_the_same_on_every_isa(generator: torch.Generator) -> None:
    weight, bias = draw(generator, torch.float32, 99, 333), draw(generator, torch.float32, 99)
    x = draw(generator, torch.float32, 37, 333)
    results = [
        PackedLinear(native_kernels(isa), pool_of(2), weight, bias, kind="s8").forward(x)
        for isa in ISAS
    ]
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("isa", [i for i in ISAS if "amx" in i])
def test_tiles_add_as_the_manual_says(isa: str) -> None:
    """TDPBF16PS adds even columns and odd ones apart, and takes subnormal numbers for zero."""
    huge, tiny = 2.0**24, 2.0**-70
    weight = torch.tensor([[huge, 1, -huge, 1], [1, huge, 1, -huge], [tiny, 0, 2.0**-130, 0]])
    linear = PackedLinear(native_kernels(isa), pool_of(1), weight, kind="bf16")
    ones, others = linear.forward(torch.tensor([[1.0, 1, 1, 1], [tiny, 0, 2.0**100, 0]]))
    assert ones.tolist() == [2, 2, tiny]  # one after the other they would be 0 and 1
    assert others[2].item() == 0  # 2^-140, and 2^100 times what counts as zero


def test_s8_at_its_limits(kernels: Kernels) -> None:
    """The largest sums: every product 127 * 127, of either sign, at the largest k."""
    weight = torch.ones(2, 65536)
    weight[1] = -1
    linear = PackedLinear(kernels, pool_of(2), weight, kind="s8")
    for sign in (1.0, -1.0):
        y = linear.forward(torch.full((3, 65536), sign))
        expected = torch.tensor([[65536.0 * sign, -65536.0 * sign]]).expand(3, 2)
        torch.testing.assert_close(y, expected, rtol=1e-6, atol=0)
    codes = torch.tensor([[-128], [127]], dtype=torch.int8).repeat(1, 65536)
    lowest = PackedLinear.from_int8(kernels, pool_of(2), codes, torch.ones(2), input_scale=1.0)
    y = lowest.forward(torch.full((3, 65536), -200.0))
    assert torch.equal(y, torch.tensor([[2.0**30, -(2.0**23) * 127]]).expand(3, 2))


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_rounded_as_promised(source: torch.dtype, generator: torch.Generator) -> None:
    kernels = native_kernels()
    weight = draw(generator, source, 45, 77)
    weight[7] = 0

    def stored(kind: WeightKind) -> Tensor:
        return PackedLinear(kernels, pool_of(2), weight, kind=kind).unpack()

    assert torch.equal(stored("f16"), weight.half().float())
    assert torch.equal(stored("s8_a16"), stored("s8"))
    top = weight.float().abs().amax(1, keepdim=True)
    error = (stored("s8") - weight.float()).abs()
    assert bool((error <= top / 127 * 0.5001).all())
    assert torch.equal(stored("s8").abs().amax(1, keepdim=True), top / 127 * 127)


def test_every_float16_is_read_right(kernels: Kernels) -> None:
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    weight = values.view(256, 256)
    for kind in ("f32", "f16"):
        stored = PackedLinear(kernels, pool_of(2), weight, kind=kind).unpack()
        assert torch.equal(stored.nan_to_num(nan=7.0), weight.float().nan_to_num(nan=7.0))
    one = PackedLinear(kernels, pool_of(2), values.view(-1, 1), kind="f16")
    by_one = one.forward(torch.ones(1, 1))[0]
    assert torch.equal(by_one.nan_to_num(nan=7.0), values.float().nan_to_num(nan=7.0))
    stored = PackedLinear(native_kernels(), pool_of(2), weight, kind="bf16").unpack()
    assert torch.equal(stored.nan_to_num(nan=7.0), weight.bfloat16().float().nan_to_num(nan=7.0))


def test_weights_between_two_float16_are_rounded_to_even() -> None:
    low = torch.arange(0, 0x7BFF, 3, dtype=torch.int32).to(torch.int16).view(torch.float16)
    high = (low.view(torch.int16) + 1).view(torch.float16)
    middle = (low.float() + high.float()) / 2
    weight = torch.cat([middle, -middle, torch.tensor([65519.9, 65520.0, 1e38, 1e-9])])[:, None]
    stored = PackedLinear(native_kernels(), pool_of(2), weight, kind="f16").unpack()
    assert torch.equal(stored, weight.half().float())


def test_not_a_number_and_infinity_stay_in_their_row(
    kernels: Kernels, kind: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    linear = product(kernels, generator, kind, 50, 70, source=dtype).pack(kernels, pool_of(2))
    for rows in (4, 20):
        x = draw(generator, dtype, rows, 70)
        clean = linear.forward(x)
        x[1, 69], x[2, 3] = float("nan"), float("inf")
        y = linear.forward(x)
        assert bool(y[1].isnan().all())
        assert not bool(y[2].isfinite().any())
        rest = [0, *range(3, rows)]
        assert torch.equal(y[rest], clean[rest])


def test_zero_rows_of_x_give_the_bias(
    kernels: Kernels, kind: str, generator: torch.Generator
) -> None:
    bias = draw(generator, torch.float32, 50)
    linear = product(kernels, generator, kind, 50, 70).pack(kernels, pool_of(2), bias=bias)
    for rows in (0, 3, 21):
        assert torch.equal(linear.forward(torch.zeros(rows, 70)), bias.expand(rows, 50))


def test_nothing_outside_the_result_is_written(
    kernels: Kernels, kind: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    for n in (1, 15, 33, 63, 100):
        weight = product(kernels, generator, kind, n, 40, turn=n, source=dtype)
        linear = weight.pack(kernels, pool_of(2))
        for rows in (1, 17, 40):
            x, room = draw(generator, dtype, rows, 40), torch.full((rows * n + 128,), 7.0).to(dtype)
            result = room[64:-64].view(rows, n)
            linear.forward(x, out=result)
            assert bool((room[:64] == 7).all())
            assert bool((room[-64:] == 7).all())
            assert torch.equal(result, linear.forward(x))


@dense_kinds
def test_inputs_need_not_be_contiguous(
    kernels: Kernels, kind: WeightKind, dtype: torch.dtype, generator: torch.Generator
) -> None:
    wide = draw(generator, dtype, 41, 96)
    for weight in (wide[:, :64], wide[:, 5:69], draw(generator, dtype, 64, 41).t()):
        linear = PackedLinear(kernels, pool_of(2), weight, kind=kind)
        assert torch.equal(
            linear.unpack(),
            PackedLinear(kernels, pool_of(2), weight.contiguous(), kind=kind).unpack(),
        )
        rows = draw(generator, dtype, 3, 5, 192)
        for x in (rows[..., 64:128], rows[:, 1, :64], rows[..., ::3], rows[0, 0, :64]):
            assert torch.equal(linear.forward(x), linear.forward(x.contiguous()))
    assert linear.forward(torch.empty(0, 2, 64, dtype=dtype)).shape == (0, 2, 41)


@pytest.mark.parametrize("epilogue", get_args(Activation))
def test_an_epilogue_is_the_operation_of_its_name(
    kernels: Kernels, kind: str, epilogue: Epilogue, generator: torch.Generator
) -> None:
    """To the bit; and the weight comes back in the order in which it went in."""
    operation = partial(FusedKernels(kernels, pool_of(2)).activation, kind=epilogue)
    shapes = [(2, 1), (30, 5), (62, 64), (64, 40), (66, 31), (2 * pick(generator, 1, 200), 96)]
    for turn, (n, k) in enumerate(shapes):
        dtype = DTYPES[turn % 3]
        weight = product(kernels, generator, kind, n, k, turn=turn, source=dtype)
        bias = draw(generator, torch.float32, n) if n % 4 else None
        plain = weight.pack(kernels, pool_of(2), bias=bias)
        fused = weight.pack(kernels, pool_of(2), bias=bias, epilogue=epilogue)
        assert torch.equal(fused.unpack(), plain.unpack())
        for rows in (1, 2, 17, 33, pick(generator, 3, 80)):
            x = draw(generator, dtype, rows, k)
            assert torch.equal(fused.forward(x), operation(plain.forward(x)))
        room = torch.full((4 * fused.columns + 128,), 7.0, dtype=dtype)
        fused.forward(x[:2].expand(2, 2, k), out=room[64:-64].view(2, 2, fused.columns))
        assert bool((room[:64] == 7).all())
        assert bool((room[-64:] == 7).all())


@pytest.mark.parametrize("epilogue", get_args(Activation))
def test_an_epilogue_rounds_as_the_operation_does(
    kernels: Kernels, epilogue: Epilogue, generator: torch.Generator
) -> None:
    """On so many products between the ends of the functions that arithmetic of another error would
    round some of them otherwise."""
    if kernels.isa.endswith("_emulated"):
        pytest.skip("takes a million emulated instructions")
    weight = draw(generator, torch.bfloat16, 512, 32) / 4
    x = draw(generator, torch.bfloat16, 600, 32)
    plain = PackedLinear(kernels, pool_of(2), weight, kind="bf16").forward(x)
    fused = PackedLinear(kernels, pool_of(2), weight, kind="bf16", epilogue=epilogue).forward(x)
    wanted = FusedKernels(kernels, pool_of(2)).activation(plain, epilogue)
    assert torch.equal(fused, wanted)


@pytest.mark.parametrize("epilogue", ["relu2", "relu2_mul"])
@dense_kinds
def test_subnormal_results_of_an_activation_stay(
    kernels: Kernels, kind: WeightKind, epilogue: Epilogue, generator: torch.Generator
) -> None:
    x = draw(generator, torch.bfloat16, 33, 64) * 2e-21  # a result is a square of about 1e-20
    weight, bias = draw(generator, torch.bfloat16, 64, 64), torch.zeros(64)
    if epilogue == "relu2_mul":
        bias[32:] = 1
    plain = PackedLinear(kernels, pool_of(1), weight, bias, kind=kind)
    fused = PackedLinear(kernels, pool_of(1), weight, bias, kind=kind, epilogue=epilogue)
    y = fused.forward(x)
    assert torch.equal(y, FusedKernels(kernels, pool_of(1)).activation(plain.forward(x), epilogue))
    assert bool(((y > 0) & (y < 2.0**-126)).any())


@pytest.mark.parametrize(
    ("kind", "row_bytes"), [("f32", 512), ("f16", 256), ("bf16", 256), ("s8", 136), ("s8_a16", 136)]
)
def test_nbytes_are_what_is_stored(kind: WeightKind, row_bytes: int) -> None:
    linear = PackedLinear(native_kernels(), pool_of(2), torch.ones(64, 128), kind=kind)
    assert linear.nbytes == 64 * row_bytes


def test_what_the_kernels_cannot_do_is_refused() -> None:
    kernels, pool, weight = native_kernels(), pool_of(2), torch.ones(4, 8)
    for bad in (weight.double(), weight[0], weight.int()):
        with pytest.raises(ValueError, match="weight is"):
            PackedLinear(kernels, pool, bad, kind="bf16")
    for bad in (torch.ones(5), torch.ones(4, 1), torch.ones(4, dtype=torch.int32)):
        with pytest.raises(ValueError, match="bias is"):
            PackedLinear(kernels, pool, weight, bad, kind="bf16")
    with pytest.raises(ValueError, match="at least one row"):
        PackedLinear(kernels, pool, torch.ones(0, 8), kind="f32")
    with pytest.raises(ValueError, match="even"):
        PackedLinear(kernels, pool, torch.ones(3, 8), kind="bf16", epilogue="silu_mul")
    with pytest.raises(ValueError, match="65536"):
        PackedLinear(kernels, pool, torch.ones(1, 65537), kind="s8")
    linear = PackedLinear(kernels, pool, weight, kind="bf16")
    for bad in (torch.ones(3, 7), torch.ones(3, 8).double(), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="x is"):
            linear.forward(bad)
    with pytest.raises(ValueError, match="the result cannot be"):
        linear.forward(weight, dtype=torch.float64)
    for bad in (torch.ones(4, 5), torch.ones(4, 4).bfloat16(), torch.ones(4, 8)[:, ::2]):
        with pytest.raises(ValueError, match="out is"):
            linear.forward(weight, out=bad)
