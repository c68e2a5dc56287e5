"""Codes of 2 to 8 bits in groups: how they are kept, and how weights are rounded to them.

`test_gemm` has what holds for products with all weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from quire.ops.native.codes import GROUPS, GroupedCodes
from quire.ops.native.kernels import Kernels, native_kernels
from tests.isas import ISAS
from tests.kernels.fused_common import U, draw, pick
from tests.kernels.products import GROUPED, bound, dense, draw_codes, quantize
from tests.native import PackedLinear, pool_of

pytestmark = pytest.mark.matrix

LOST = {
    "u4": {32: 0.0054, 64: 0.0073, 128: 0.0090},
    "u6": {32: 3.5e-4, 64: 4.7e-4, 128: 5.8e-4},
}

RoundedKind = Literal["u4", "u6"]
each_rounded = pytest.mark.parametrize("kind", ["u4", "u6"])
each_rounded_group = pytest.mark.parametrize("group", [32, 64, 128])


@pytest.fixture(params=GROUPED)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=GROUPS)
def group(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize("second", ["zero", "zeros", "offsets"])
def test_the_same_on_every_isa_with_fused_multiply_add(
    kind: str, group: int, second: str, generator: torch.Generator
) -> None:
    codes = draw_codes(generator, kind, 99, 333, group, second)
    x = draw(generator, torch.float32, 37, 333)
    for rows in (3, 37):
        first, *others = (
            PackedLinear.from_codes(native_kernels(isa), pool_of(2), codes).forward(x[:rows])
            for isa in ISAS
            if isa != "portable"
        )
        assert all(torch.equal(first, other) for other in others)


def test_the_largest_sums(kernels: Kernels, kind: str, group: int) -> None:
    """Groups of the largest codes and the largest x, whose sums must not saturate."""
    bits = 4 if kind == "book" else int(kind)
    book = torch.full((16,), 255, dtype=torch.uint8) if kind == "book" else None
    largest = 255 if kind == "book" else (1 << bits) - 1
    q = torch.full((33, 4096), (1 << bits) - 1, dtype=torch.uint8)
    scale = torch.ones(33, 4096 // group)
    scale[1] = -1
    rows = torch.ones(33)
    rows[1] = -1
    for zero in (0, largest // 2, largest):
        codes = GroupedCodes(q, bits, group, scale, zero, codebook=book)
        linear = PackedLinear.from_codes(kernels, pool_of(2), codes)
        for sign, count in ((1.0, 1), (-1.0, 17)):
            y = linear.forward(torch.full((count, 4096), sign))
            expected = (sign * 4096 * (largest - zero) * rows).expand(count, 33)
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("second", ["zero", "zeros", "offsets"])
def test_codes_are_kept_exactly(
    kind: str, group: int, second: str, stored: torch.dtype, generator: torch.Generator
) -> None:
    """GPTQ, AWQ and Q4_0 have zero points, Q4_1 has offsets; scales are float16 or bfloat16."""
    codes = draw_codes(generator, kind, 46, pick(generator, 1, 300), group, second)
    scale = codes.scale.to(stored).float()
    scale[3] *= 2**-9
    scale[4] = 0
    if stored == torch.float16:
        extremes = torch.tensor([2.0**-24, -(2.0**-14), 65504.0, 1.0, 0.0, 3.0, 5.0])
        scale[5] = extremes.repeat(3)[: scale.shape[1]]
        scale[6] = 2.0**-24
    offsets = codes.offsets if codes.offsets is None else codes.offsets.to(stored).float()
    codes = replace(codes, scale=scale, offsets=offsets)
    weight = dense(codes, torch.float32)
    linear = PackedLinear.from_codes(native_kernels(), pool_of(2), codes)
    gated = PackedLinear.from_codes(native_kernels(), pool_of(2), codes, epilogue="silu_mul")
    assert linear.kind == codes.kind
    assert torch.equal(linear.unpack(), weight)
    assert torch.equal(gated.unpack(), weight)
    ids = torch.tensor([44, 0, 7, 7])
    assert torch.equal(linear.lookup(ids), weight[ids])


def test_a_scale_of_x_that_the_checkpoint_brings(
    kernels: Kernels, generator: torch.Generator
) -> None:
    """q = round(x / scale) within int8, of groups and of rows alike."""
    scale, x = 0.03, draw(generator, torch.float32, 11, 130)
    x[3, 5], x[4, 6] = 100.0, -100.0
    unit = torch.tensor(scale)
    q = (x / unit).round().clamp(-128, 127).double()
    codes = replace(draw_codes(generator, "8", 40, 130, 64), input_scale=scale)
    y = PackedLinear.from_codes(kernels, pool_of(2), codes).forward(x)
    exact = q @ dense(codes, torch.float64).t() * unit.double()
    allowed = (bound(codes, q) + 8 * U * exact.abs()) * 1.01 * unit.double() + 1e-6 * exact.abs()
    assert bool(((y.double() - exact).abs() <= allowed).all())

    weight = torch.randint(-128, 128, (40, 130), generator=generator).to(torch.int8)
    row_scale = draw(generator, torch.float32, 40).abs()
    linear = PackedLinear.from_int8(kernels, pool_of(2), weight, row_scale, input_scale=scale)
    exact = q @ weight.double().t() * row_scale.double() * unit.double()
    torch.testing.assert_close(linear.forward(x).double(), exact, rtol=1e-6, atol=0)
    x[0, 0] = float("nan")
    assert bool(linear.forward(x)[0].isnan().all())


@pytest.mark.parametrize("kind8", ["s8", "s8_a16"])
def test_int8_is_kept_exactly(kind8: Any, generator: torch.Generator) -> None:
    weight = torch.randint(-128, 128, (45, 130), generator=generator).to(torch.int8)
    scale = draw(generator, torch.float32, 45)
    linear = PackedLinear.from_int8(native_kernels(), pool_of(2), weight, scale, kind=kind8)
    assert torch.equal(linear.unpack(), weight.float() * scale[:, None])
    x = draw(generator, torch.float32, 9, 130)
    if kind8 == "s8":
        q, x_scale = quantize(x)
        exact = q @ weight.double().t() * scale.double() * x_scale
        torch.testing.assert_close(linear.forward(x).double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@each_rounded_group
@each_rounded
def test_rounding_beats_the_range_divided_evenly(
    kind: RoundedKind, source: torch.dtype, group: int, generator: torch.Generator
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


@each_rounded_group
@each_rounded
def test_rounding_is_the_same_on_every_isa_and_thread(
    kind: RoundedKind, group: int, generator: torch.Generator
) -> None:
    weight = draw(generator, torch.float32, 33, 333)
    weight[3] = 0
    weight[4] *= 1e-6
    first, *others = (
        PackedLinear(native_kernels(isa), pool_of(threads), weight, kind=kind, group=group).unpack()
        for isa in ISAS
        for threads in (1, 2)
    )
    assert all(torch.equal(first, other) for other in others)


@each_rounded_group
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


def test_nbytes_are_what_is_stored(kind: str) -> None:
    bits = 4 if kind == "book" else int(kind)
    book = torch.zeros(16, dtype=torch.uint8) if kind == "book" else None
    codes = GroupedCodes(
        torch.zeros(64, 256, dtype=torch.uint8), bits, 32, torch.ones(64, 8), codebook=book
    )
    size = 64 * 256 * bits // 8 + 64 * 8 * 2 + 64 * 4
    linear = PackedLinear.from_codes(native_kernels(), pool_of(2), codes)
    assert linear.nbytes == size + (0 if book is None else 16)
    codes = replace(codes, offsets=torch.ones(64, 8))
    if book is None:
        offset = PackedLinear.from_codes(native_kernels(), pool_of(2), codes)
        assert offset.nbytes == size + 64 * 8 * 2


def test_what_cannot_be_packed_is_refused() -> None:
    kernels, pool = native_kernels(), pool_of(2)
    q, one = torch.ones(4, 64, dtype=torch.uint8), torch.ones(4, 2)
    sound = GroupedCodes(q, 4, 32, one, zeros=one)

    def refused(match: str, changes: dict[str, Any], **form: Any) -> None:
        with pytest.raises(ValueError, match=match):
            PackedLinear.from_codes(kernels, pool, replace(sound, **changes), **form)

    refused("codes are", {"codes": q.int()})
    refused("codes are", {"codes": q[0]})
    refused("codes are", {"codes": q[:0]})
    refused("4 bits", {"codes": q * 16})
    refused("scale are", {"scale": one[:, :1]})
    refused("zeros are", {"zeros": one[:3]})
    refused("offsets are", {"zeros": None, "offsets": one[:3]})
    refused("a group of weights has", {"group": 63})
    refused("a group of weights has", {"group": -1})
    refused("every column once", {"permutation": torch.zeros(64, dtype=torch.int32)})
    refused("every column once", {"permutation": torch.arange(63, dtype=torch.int32)})
    refused("bias is", {}, bias=torch.ones(3))
    refused("even", {"codes": q[:3], "scale": one[:3], "zeros": one[:3]}, epilogue="silu_mul")
    with pytest.raises(ValueError, match="32, 64 or 128"):
        PackedLinear(kernels, pool, torch.ones(4, 8), kind="u4", group=24)
    with pytest.raises(ValueError, match="not rounded to this kind"):
        PackedLinear(kernels, pool, torch.ones(4, 8), kind="u5", group=32)
