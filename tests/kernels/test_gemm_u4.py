"""Linear layers on 4-bit weights, for every instruction set that this machine can run.

The oracle is float64 on the canonical form (q, scale, zero points or offsets), which is drawn at
random afresh at every run; QUIRE_TEST_SEED=<seed from the report> repeats one. What rounding to
4 and 6 bits costs has tests of its own.
"""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from quire.ops.native.codes import GroupedCodes
from quire.ops.native.kernels import Kernels, native_kernels
from quire.ops.weights import Epilogue
from tests.kernels.fused_common import draw, new_generator, pick
from tests.kernels.linear_common import assert_rows_are_their_own, assert_writes_its_result_alone
from tests.native import ISAS, PackedLinear, pool_of

pytestmark = pytest.mark.matrix

GROUPS = (32, 64, 128)
LOST = {
    "u4": {32: 0.0054, 64: 0.0073, 128: 0.0090},
    "u6": {32: 3.5e-4, 64: 4.7e-4, 128: 5.8e-4},
}
EPS32, EPS_BF16 = 2.0**-24, 2.0**-8  # relative error of one rounding
SHAPES = [(1, 1), (3, 5), (31, 64), (33, 31), (64, 96), (97, 65), (160, 300), (257, 1023)]


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return native_kernels(request.param)


@pytest.fixture(params=GROUPS)
def group(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    return new_generator()


class Int4:
    """A random weight in canonical form, its scales from `stored`."""

    def __init__(
        self,
        generator: torch.Generator,
        n: int,
        k: int,
        group: int,
        *,
        zero_points: bool,
        stored: torch.dtype = torch.float16,
    ) -> None:
        groups = -(-k // group)
        self.group = group
        self.q = torch.randint(16, (n, k), generator=generator).to(torch.uint8)
        self.scale = (draw(generator, torch.float32, n, groups) / 100).to(stored)
        self.zero, self.offset = None, None
        if zero_points:
            self.zero = torch.randint(17, (n, groups), generator=generator)
        else:
            self.offset = (draw(generator, torch.float32, n, groups) / 10).to(stored)

    def linear(self, kernels: Kernels, bias: Tensor | None = None) -> PackedLinear:
        codes = GroupedCodes(
            self.q, 4, self.group, self.scale, zeros=self.zero, offsets=self.offset
        )
        return PackedLinear.from_codes(kernels, pool_of(2), codes, bias=bias)

    def spread(self, of_groups: Tensor) -> Tensor:
        """[n, groups] → [n, k]."""
        return of_groups.repeat_interleave(self.group, 1)[:, : self.q.shape[1]]

    def offsets(self) -> Tensor:
        """W = q * scale + offset: the offsets, exact in float64."""
        if self.zero is not None:
            return -self.zero.double() * self.scale.double()
        assert self.offset is not None
        return self.offset.double()

    def weight(self, dtype: torch.dtype) -> Tensor:
        """[n, k], computed in `dtype`."""
        scale, q = self.spread(self.scale).to(dtype), self.q.to(dtype)
        if self.zero is not None:
            return (q - self.spread(self.zero).to(dtype)) * scale
        assert self.offset is not None
        return q * scale + self.spread(self.offset).to(dtype)

    def bound(self, x: Tensor) -> Tensor:
        """What float32 may be off by: a group rounds twice, on sums of magnitudes up to these."""
        groups = self.scale.shape[1]
        size = torch.zeros(x.shape[0], self.q.shape[0], dtype=torch.float64)
        for g in range(groups):
            part = slice(g * self.group, (g + 1) * self.group)
            dots = x[:, part] @ self.q[:, part].double().t() * self.scale[:, g].double()
            size += dots.abs() + (x[:, part].sum(1)[:, None] * self.offsets()[:, g]).abs()
        return (2 * groups + 6) * EPS32 * size


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """x in int8 and its scales, a row each, in the float32 arithmetic of the kernel."""
    top = x.float().abs().amax(-1, keepdim=True)
    inverse = torch.full_like(top, 127.0) / top  # `127.0 / top` would round twice
    return torch.round(x.float() * inverse).double(), (top / 127.0).double()


def assert_linear(y: Tensor, x: Tensor, weight: Int4, bias: Tensor | None) -> None:
    q, scale = quantize(x)
    shift = bias.double() if bias is not None else torch.zeros(1, dtype=torch.float64)
    exact = (q @ weight.weight(torch.float64).t()) * scale + shift
    bound = weight.bound(q) * scale + 6 * EPS32 * (exact.abs() + shift.abs())
    if y.dtype == torch.bfloat16:
        bound = bound + EPS_BF16 * (exact.abs() + bound)
    error = (y.double() - exact).abs()
    assert y.shape == exact.shape
    assert bool((error <= bound).all()), float((error / bound).max())


@pytest.mark.parametrize("zero_points", [True, False])
def test_agrees_with_float64(
    kernels: Kernels,
    group: int,
    dtype: torch.dtype,
    zero_points: bool,
    generator: torch.Generator,
) -> None:
    for n, k in [*SHAPES, (pick(generator, 1, 200), pick(generator, 1, 700))]:
        bias = draw(generator, torch.float32, n) if n % 2 else None
        weight = Int4(generator, n, k, group, zero_points=zero_points)
        linear = weight.linear(kernels, bias)
        for rows in (1, 4, 5, 17, 32, pick(generator, 1, 70)):
            x = draw(generator, dtype, rows, k)
            assert_linear(linear.forward(x), x, weight, bias)
            other = torch.float32 if dtype == torch.bfloat16 else torch.bfloat16
            assert_linear(linear.forward(x, dtype=other), x, weight, bias)


def test_every_count_of_rows(
    kernels: Kernels, group: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Rows 1 to 70, 300 and 700: right, and bit by bit what each row gives alone."""
    n, k = (70, 129) if pick(generator, 0, 1) else (64, 512)
    weight = Int4(generator, n, k, group, zero_points=bool(pick(generator, 0, 1)))
    linear = weight.linear(kernels)
    x = draw(generator, dtype, 700, k)
    y = linear.forward(x)
    assert_linear(y, x, weight, None)
    assert_rows_are_their_own(linear, x, y, (*range(1, 71), 300), generator)


def test_threads_and_order_do_not_matter(
    kernels: Kernels, group: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight, bias = draw(generator, dtype, 321, 200), draw(generator, dtype, 321)
    one, two = (
        PackedLinear(kernels, pool_of(t), weight, bias, kind="u4", group=group) for t in (1, 2)
    )
    assert torch.equal(one.unpack(), two.unpack())
    for rows in (1, 7, 40, 300):
        x = draw(generator, dtype, rows, 200)
        y = one.forward(x)
        assert torch.equal(two.forward(x), y)
        order = torch.randperm(rows, generator=generator)
        assert torch.equal(two.forward(x[order]), y[order])


@pytest.mark.parametrize("zero_points", [True, False])
def test_the_same_on_every_isa_with_fused_multiply_add(
    group: int, zero_points: bool, generator: torch.Generator
) -> None:
    weight = Int4(generator, 99, 333, group, zero_points=zero_points)
    x = draw(generator, torch.float32, 37, 333)
    results = [
        weight.linear(native_kernels(isa)).forward(x[:rows])
        for isa in ISAS
        if isa != "portable"
        for rows in (3, 37)
    ]
    assert all(torch.equal(results[0], other[: len(results[0])]) for other in results)
    assert all(torch.equal(results[1], other) for other in results[1::2])


def test_the_largest_sums(kernels: Kernels, group: int) -> None:
    q = torch.full((2, 4096), 15, dtype=torch.uint8)
    scale = torch.ones(2, 4096 // group)
    scale[1] = -1
    for zero in (0, 15):
        codes = GroupedCodes(q, 4, group, scale, zeros=torch.full_like(scale, zero))
        linear = PackedLinear.from_codes(kernels, pool_of(2), codes)
        for sign in (1.0, -1.0):
            y = linear.forward(torch.full((17, 4096), sign))
            expected = torch.tensor([[sign, -sign]]).expand(17, 2) * 4096 * (15 - zero)
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("zero_points", [True, False])
def test_formats_on_disk_are_kept_exactly(
    group: int, zero_points: bool, stored: torch.dtype, generator: torch.Generator
) -> None:
    """GPTQ, AWQ and Q4_0 have zero points, Q4_1 has offsets; scales are float16 or bfloat16."""
    weight = Int4(generator, 45, 200, group, zero_points=zero_points, stored=stored)
    weight.scale[3] *= 2**-9
    weight.scale[4] = 0
    if stored == torch.float16:
        weight.scale[5] = torch.tensor([2.0**-24, -(2.0**-14), 65504.0, 1.0, 0.0, 3.0, 5.0])[
            : weight.scale.shape[1]
        ]
        weight.scale[6] = 2.0**-24
    assert torch.equal(weight.linear(native_kernels()).unpack(), weight.weight(torch.float32))


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["u4", "u6"])
def test_rounding_beats_the_range_divided_evenly(
    kind: Literal["u4", "u6"], source: torch.dtype, group: int, generator: torch.Generator
) -> None:
    weight, most = draw(generator, source, 64, 1024), {"u4": 15, "u6": 63}[kind]
    stored = PackedLinear(native_kernels(), pool_of(2), weight, kind=kind, group=group).unpack()
    w = weight.double().reshape(-1, group)
    error = (stored.double().reshape(-1, group) - w).square().sum(1)
    low, step = w.amin(1, keepdim=True), (w.amax(1, keepdim=True) - w.amin(1, keepdim=True)) / most
    even = (((w - low) / step).round() * step + low - w).square().sum(1)
    # Line and offset are kept in 11 bits; of lines, the best is told by float32 sums of squares.
    kept = 2.0**-11 * (most * step + low.abs() + step)
    summed = 2.0**-20 * (w - w.mean(1, keepdim=True)).square().sum(1)
    assert bool((error <= even + group * kept.square()[:, 0] + summed).all())
    # Of a Gaussian's variance; even division to 4 bits gives 0.0061, 0.0081 and 0.0100.
    assert float(error.sum() / w.square().sum()) < LOST[kind][group]


@pytest.mark.parametrize("kind", ["u4", "u6"])
def test_rounding_is_the_same_on_every_isa(
    kind: Literal["u4", "u6"], group: int, generator: torch.Generator
) -> None:
    weight = draw(generator, torch.float32, 33, 333)
    weight[3] = 0
    weight[4] *= 1e-6
    packed = [
        PackedLinear(native_kernels(isa), pool_of(2), weight, kind=kind, group=group).unpack()
        for isa in ISAS
    ]
    assert all(torch.equal(packed[0], other) for other in packed)


def test_rounding_at_every_scale(kernels: Kernels, group: int, generator: torch.Generator) -> None:
    """Tiny and huge rows lose no more than others, equal weights nothing but float16's bits."""
    weight = draw(generator, torch.float32, 6, 640)
    scales = torch.tensor([1e-25, 1e-12, 1e-5, 1.0, 1e5, 1e30])[:, None]
    stored = PackedLinear(kernels, pool_of(2), weight * scales, kind="u4", group=group).unpack()
    error = (stored / scales - weight).square().mean(1)
    assert bool((error < 0.02).all())
    # A group that is small beside its row, beyond what float16 spans, is small still.
    weight = draw(generator, torch.float32, 1, 2 * group)
    weight[:, :group] *= 1e-12
    stored = PackedLinear(kernels, pool_of(2), weight, kind="u4", group=group).unpack()
    assert bool((stored[:, :group].abs() < 1e-7).all())
    equal = torch.full((2, 100), 0.1)
    equal[1] = 0
    stored = PackedLinear(kernels, pool_of(2), equal, kind="u4", group=group).unpack()
    torch.testing.assert_close(stored, equal, rtol=2**-11, atol=0)


def test_weights_that_are_no_numbers_stay_in_their_row(
    kernels: Kernels, generator: torch.Generator
) -> None:
    weight = draw(generator, torch.float32, 40, 100)
    clean = PackedLinear(kernels, pool_of(2), weight, kind="u4")
    weight[7, 3], weight[20, 99] = float("nan"), float("inf")
    x = draw(generator, torch.float32, 3, 100)
    y = PackedLinear(kernels, pool_of(2), weight, kind="u4").forward(x)
    assert not bool(y[:, [7, 20]].isfinite().any())
    others = [i for i in range(40) if i not in (7, 20)]
    assert torch.equal(y[:, others], clean.forward(x)[:, others])


def test_not_a_number_and_infinity_stay_in_their_row(
    kernels: Kernels, group: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight = draw(generator, dtype, 50, 70)
    linear = PackedLinear(kernels, pool_of(2), weight, kind="u4", group=group)
    for rows in (4, 20):
        x = draw(generator, dtype, rows, 70)
        clean = linear.forward(x)
        x[1, 69], x[2, 3] = float("nan"), float("inf")
        y = linear.forward(x)
        assert bool(y[1].isnan().all())
        assert not bool(y[2].isfinite().any())
        rest = [0, *range(3, rows)]
        assert torch.equal(y[rest], clean[rest])


def test_zero_rows_of_x_give_the_bias(kernels: Kernels, generator: torch.Generator) -> None:
    bias = draw(generator, torch.float32, 50)
    weight = draw(generator, torch.float32, 50, 70)
    linear = PackedLinear(kernels, pool_of(2), weight, bias, kind="u4")
    for rows in (3, 21):
        assert torch.equal(linear.forward(torch.zeros(rows, 70)), bias.expand(rows, 50))


def test_nothing_outside_the_result_is_written(
    kernels: Kernels, group: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    for n in (1, 15, 33, 63, 100):
        linear = PackedLinear(
            kernels, pool_of(2), draw(generator, dtype, n, 40), kind="u4", group=group
        )
        for rows in (1, 17, 40):
            assert_writes_its_result_alone(linear, draw(generator, dtype, rows, 40), n)


def test_a_gate_is_applied_as_on_its_own(
    kernels: Kernels, group: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight, bias = draw(generator, dtype, 90, 70), draw(generator, torch.float32, 90)
    plain = PackedLinear(kernels, pool_of(2), weight, bias, kind="u4", group=group)
    gated = PackedLinear(
        kernels, pool_of(2), weight, bias, kind="u4", group=group, epilogue="silu_mul"
    )
    assert torch.equal(plain.unpack(), gated.unpack())
    x = draw(generator, dtype, 19, 70)
    gate, up = plain.forward(x).double().chunk(2, -1)
    exact = torch.nn.functional.silu(gate) * up
    tolerance = EPS_BF16 if dtype == torch.bfloat16 else 32 * EPS32
    torch.testing.assert_close(
        gated.forward(x).double(), exact, rtol=tolerance, atol=tolerance * 1e-3
    )


def test_nbytes_are_what_is_stored(group: int) -> None:
    linear = PackedLinear(native_kernels(), pool_of(2), torch.ones(64, 256), kind="u4", group=group)
    assert linear.nbytes == 64 * 256 // 2 + 64 * (256 // group) * 4 + 64 * 4


def test_what_cannot_be_packed_is_refused() -> None:
    kernels, pool = native_kernels(), pool_of(2)
    q, one = torch.ones(4, 64, dtype=torch.uint8), torch.ones(4, 2)
    sound = GroupedCodes(q, 4, 32, one, zeros=one)

    def refused(
        match: str, bias: Tensor | None = None, epilogue: Epilogue = "none", **changes: object
    ) -> None:
        codes = replace(sound, **changes)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=match):
            PackedLinear.from_codes(kernels, pool, codes, bias=bias, epilogue=epilogue)

    refused("codes are", codes=q.int())
    refused("codes are", codes=q[0])
    refused("codes are", codes=q[:0])
    refused("4 bits", codes=q * 16)
    refused("scale are", scale=one[:, :1])
    refused("zeros are", zeros=one[:3])
    refused("offsets are", zeros=None, offsets=one[:3])
    refused("a group of weights has", group=63)
    refused("a group of weights has", group=-1)
    refused("every column once", permutation=torch.zeros(64, dtype=torch.int32))
    refused("every column once", permutation=torch.arange(63, dtype=torch.int32))
    refused("bias is", bias=torch.ones(3))
    refused("even", epilogue="silu_mul", codes=q[:3], scale=one[:3], zeros=one[:3])
    with pytest.raises(ValueError, match="32, 64 or 128"):
        PackedLinear(kernels, pool, torch.ones(4, 8), kind="u4", group=24)
    with pytest.raises(ValueError, match="not rounded to this kind"):
        PackedLinear(kernels, pool, torch.ones(4, 8), kind="u5", group=32)
