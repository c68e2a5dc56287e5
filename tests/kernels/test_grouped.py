"""Products of codes of 2 to 8 bits in groups, for every instruction set that this machine can run.

The oracle is float64 on the codes, which are drawn at random afresh at every run;
QUIRE_TEST_SEED=<seed from the report> repeats one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.ops.native.codes import BITS, GROUPS, GroupedCodes
from quire.ops.native.kernels import Kernels, native_kernels
from tests.kernels.fused_common import draw, new_generator, pick
from tests.kernels.test_gemm_u4 import EPS32, quantize
from tests.native import ISAS, PackedLinear, pool_of

pytestmark = pytest.mark.matrix

KINDS = [*map(str, BITS), "book"]
SECONDS = ("zero", "zeros", "offsets")
SHAPES = [(1, 1), (33, 31), (97, 65), (64, 272)]


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return native_kernels(request.param)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    return new_generator()


def draw_codes(generator: torch.Generator, kind: str, n: int, k: int, group: int) -> GroupedCodes:
    """Any form of groups, permuted every other time; scales and offsets are from float16."""
    bits = 4 if kind == "book" else int(kind)
    groups = (n, -(-k // group))
    found = GroupedCodes(
        torch.randint(1 << bits, (n, k), generator=generator).to(torch.uint8),
        bits,
        group,
        (draw(generator, torch.float32, *groups) / 100).half().float(),
    )
    if kind == "book":
        book = torch.randint(256, (16,), generator=generator).to(torch.uint8)
        found = replace(found, codebook=book, zero=128)
    if pick(generator, 0, 1):
        permutation = torch.randperm(k, generator=generator).to(torch.int32)
        found = replace(found, permutation=permutation)
    second = "zero" if kind == "book" else SECONDS[pick(generator, 0, 2)]
    if second == "zero":
        return replace(found, zero=pick(generator, 0, 1 << bits))
    if second == "zeros":
        zeros = torch.randint(1 + (1 << bits), groups, generator=generator).float()
        return replace(found, zeros=zeros)
    offsets = (draw(generator, torch.float32, *groups) / 10).half().float()
    return replace(found, offsets=offsets)


def by_column(codes: GroupedCodes, of_groups: Tensor) -> Tensor:
    return of_groups.repeat_interleave(codes.group, 1)[:, : codes.codes.shape[1]]


def values(codes: GroupedCodes) -> Tensor:
    """What the codes stand for, without zeros: float64 [n, k]."""
    if codes.codebook is None:
        return codes.codes.double()
    return codes.codebook[codes.codes.to(torch.int64)].double()


def dense(codes: GroupedCodes, dtype: torch.dtype) -> Tensor:
    """W [n, k], columns in x's order, computed in `dtype`."""
    zeros = codes.zero if codes.zeros is None else by_column(codes, codes.zeros)
    w = (values(codes) - zeros).to(dtype) * by_column(codes, codes.scale).to(dtype)
    if codes.offsets is not None:
        w = w + by_column(codes, codes.offsets).to(dtype)
    if codes.permutation is not None:
        ordered = torch.empty_like(w)
        ordered[:, codes.permutation.to(torch.int64)] = w
        return ordered
    return w


def bound(codes: GroupedCodes, x: Tensor) -> Tensor:
    """What float32 may be off by: a group rounds twice, on sums of magnitudes up to these."""
    if codes.permutation is not None:
        x = x[:, codes.permutation.to(torch.int64)]
    groups = codes.scale.shape[1]
    size = torch.zeros(x.shape[0], codes.codes.shape[0], dtype=torch.float64)
    q = values(codes) - codes.zero
    for g in range(groups):
        part = slice(g * codes.group, (g + 1) * codes.group)
        scale, x_sum = codes.scale[:, g].double(), x[:, part].sum(1)[:, None].abs()
        size += (x[:, part] @ q[:, part].t() * scale).abs()
        if codes.zeros is not None:
            size += x_sum * (codes.zeros[:, g].double() * scale).abs()
        if codes.offsets is not None:
            size += x_sum * codes.offsets[:, g].double().abs()
    return (2 * groups + 6) * EPS32 * size


def assert_linear(y: Tensor, x: Tensor, codes: GroupedCodes, bias: Tensor | None = None) -> None:
    q, scale = quantize(x)
    shift = torch.zeros(1, dtype=torch.float64) if bias is None else bias.double()
    exact = (q @ dense(codes, torch.float64).t()) * scale + shift
    error = (y.double() - exact).abs()
    allowed = bound(codes, q) * scale + 6 * EPS32 * (exact.abs() + shift.abs())
    assert y.shape == exact.shape
    assert bool((error <= allowed).all()), float((error / allowed).max())


def test_agrees_with_float64(kernels: Kernels, kind: str, generator: torch.Generator) -> None:
    for n, k in [*SHAPES, (pick(generator, 1, 200), pick(generator, 1, 500))]:
        codes = draw_codes(generator, kind, n, k, GROUPS[pick(generator, 0, 3)])
        bias = draw(generator, torch.float32, n) if n % 2 else None
        linear = PackedLinear.from_codes(kernels, pool_of(2), codes, bias=bias)
        assert linear.kind == codes.kind
        for rows in (1, 4, 17, pick(generator, 2, 40)):
            x = draw(generator, torch.float32, rows, k)
            assert_linear(linear.forward(x), x, codes, bias)


def test_every_count_of_rows(kernels: Kernels, kind: str, generator: torch.Generator) -> None:
    """Right, and bit by bit what each row gives alone, on one thread and on two."""
    n, k = 70, pick(generator, 100, 300)
    codes = draw_codes(generator, kind, n, k, GROUPS[pick(generator, 0, 3)])
    one, two = (PackedLinear.from_codes(kernels, pool_of(t), codes) for t in (1, 2))
    x = draw(generator, torch.bfloat16, 110, k)
    y = two.forward(x, dtype=torch.float32)
    assert_linear(y, x, codes)
    for rows in (1, *range(2, 41, pick(generator, 1, 3)), 110):
        first = pick(generator, 0, 110 - rows)
        some = one.forward(x[first : first + rows], dtype=torch.float32)
        assert torch.equal(some, y[first : first + rows])


def test_the_same_on_every_isa_with_fused_multiply_add(
    kind: str, generator: torch.Generator
) -> None:
    codes = draw_codes(generator, kind, 99, 333, GROUPS[pick(generator, 0, 3)])
    x = draw(generator, torch.float32, 37, 333)
    fused = [native_kernels(isa) for isa in ISAS if isa != "portable"]
    results = [PackedLinear.from_codes(k, pool_of(2), codes).forward(x) for k in fused]
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("group", GROUPS)
def test_the_largest_sums(kernels: Kernels, kind: str, group: int) -> None:
    """Groups of the largest codes and the largest x, whose sums must not saturate."""
    bits = 4 if kind == "book" else int(kind)
    book = torch.full((16,), 255, dtype=torch.uint8) if kind == "book" else None
    largest = 255 if kind == "book" else (1 << bits) - 1
    q = torch.full((33, 512), (1 << bits) - 1, dtype=torch.uint8)
    scale = torch.ones(33, 512 // group)
    for zero in (0, largest // 2):
        codes = GroupedCodes(q, bits, group, scale, zero, codebook=book)
        linear = PackedLinear.from_codes(kernels, pool_of(2), codes)
        for sign in (1.0, -1.0):
            for rows in (1, 9):
                y = linear.forward(torch.full((rows, 512), sign))
                expected = torch.full((rows, 33), sign * 512 * (largest - zero))
                torch.testing.assert_close(y, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("group", GROUPS)
def test_codes_are_kept_exactly(kind: str, group: int, generator: torch.Generator) -> None:
    codes = draw_codes(generator, kind, 46, pick(generator, 1, 300), group)
    weight = dense(codes, torch.float32)
    linear = PackedLinear.from_codes(native_kernels(), pool_of(2), codes)
    gated = PackedLinear.from_codes(native_kernels(), pool_of(2), codes, epilogue="silu_mul")
    assert torch.equal(linear.unpack(), weight)
    assert torch.equal(gated.unpack(), weight)
    ids = torch.tensor([44, 0, 7, 7])
    assert torch.equal(linear.lookup(ids), weight[ids])


def test_not_a_number_stays_in_its_row(
    kernels: Kernels, kind: str, generator: torch.Generator
) -> None:
    codes = draw_codes(generator, kind, 50, 70, 32)
    linear = PackedLinear.from_codes(kernels, pool_of(2), codes)
    x = draw(generator, torch.float32, 20, 70)
    clean = linear.forward(x)
    x[1, 69], x[2, 3] = float("nan"), float("inf")
    y = linear.forward(x)
    assert bool(y[1].isnan().all())
    assert not bool(y[2].isfinite().any())
    rest = [0, *range(3, 20)]
    assert torch.equal(y[rest], clean[rest])


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
    allowed = (
        bound(codes, q) + 8 * EPS32 * exact.abs()
    ) * 1.01 * unit.double() + 1e-6 * exact.abs()
    assert bool(((y.double() - exact).abs() <= allowed).all())

    weight = torch.randint(-128, 128, (40, 130), generator=generator).to(torch.int8)
    row_scale = draw(generator, torch.float32, 40).abs()
    linear = PackedLinear.from_int8(kernels, pool_of(2), weight, row_scale, input_scale=scale)
    exact = q @ weight.double().t() * row_scale.double() * unit.double()
    torch.testing.assert_close(linear.forward(x).double(), exact, rtol=1e-6, atol=0)
    x[0, 0] = float("nan")
    assert bool(linear.forward(x)[0].isnan().all())


@pytest.mark.parametrize("kind8", ["s8", "s8_a16"])
def test_int8_is_kept_exactly(kind8: str, generator: torch.Generator) -> None:
    weight = torch.randint(-128, 128, (45, 130), generator=generator).to(torch.int8)
    scale = draw(generator, torch.float32, 45)
    linear = PackedLinear.from_int8(native_kernels(), pool_of(2), weight, scale, kind=kind8)  # type: ignore[arg-type]
    assert torch.equal(linear.unpack(), weight.float() * scale[:, None])
    x = draw(generator, torch.float32, 9, 130)
    if kind8 == "s8":
        q, x_scale = quantize(x)
        exact = q @ weight.double().t() * scale.double() * x_scale
        torch.testing.assert_close(linear.forward(x).double(), exact, rtol=1e-6, atol=0)


def test_nbytes_are_what_is_stored(kind: str) -> None:
    bits = 4 if kind == "book" else int(kind)
    book = torch.zeros(16, dtype=torch.uint8) if kind == "book" else None
    codes = GroupedCodes(
        torch.zeros(64, 256, dtype=torch.uint8), bits, 32, torch.ones(64, 8), codebook=book
    )
    linear = PackedLinear.from_codes(native_kernels(), pool_of(2), codes)
    assert linear.nbytes == 64 * 256 * bits // 8 + 64 * 8 * 2 + 64 * 4 + (
        16 if book is not None else 0
    )
