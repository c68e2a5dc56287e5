"""Random weights of every kind that a product takes, and what holds for all of them.

The oracle is float64 on the weights as they are stored, so that only the kernel is tested. Weights
are random afresh at every run; QUIRE_TEST_SEED=<seed from the report> repeats one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quire.ops.native.codes import BITS, GROUPS, GroupedCodes
from quire.ops.native.kernels import Kernels
from tests.kernels.fused_common import TINY, UNIT, U, draw, pick
from tests.native import PackedLinear, QuantizedWeight, pack_float8, pool_of

DENSE = ("f32", "f16", "bf16", "s8", "s8_a16")
GROUPED = (*map(str, BITS), "book")
FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
KINDS = (*DENSE, *GROUPED, *FLOAT8)
WHOLE = 1 << 20
"""A group of all columns: of 8-bit floats, one scale a row."""
SHAPES = [(1, 1), (3, 5), (31, 64), (33, 31), (64, 96), (97, 65), (160, 300), (257, 1023)]


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """x in int8 and its scales, a row each, in the float32 arithmetic of the kernel."""
    top = x.float().abs().amax(-1, keepdim=True)
    inverse = torch.full_like(top, 127.0) / top  # `127.0 / top` would round twice
    return torch.round(x.float() * inverse).double(), (top / 127.0).double()


def rounded(dtype: torch.dtype, x: Tensor) -> tuple[Tensor, Tensor]:
    return x.to(dtype).double(), torch.ones(1, dtype=torch.float64)


@dataclass(frozen=True)
class Product:
    """A weight, and what a product with it may be off by.

    Attributes:
        pack: packs it, for kernels and a pool; takes `PackedLinear`'s options.
        dense: W [n, k] in float64, columns in x's order.
        read: x as the kernel reads it, and what one of it stands for.
        bound: the most that float32 may be off by for such an x, apart from 6 roundings of the
            result: two scales and a bias, of which the oracle rounds some as well.
    """

    pack: Callable[..., PackedLinear]
    dense: Tensor
    read: Callable[[Tensor], tuple[Tensor, Tensor]]
    bound: Callable[[Tensor], Tensor]

    def check(self, y: Tensor, x: Tensor, bias: Tensor | None = None) -> None:
        """Check that y is the product with x."""
        q, scale = self.read(x)
        shift = torch.zeros(1, dtype=torch.float64) if bias is None else bias.double()
        exact = (q @ self.dense.t()) * scale + shift
        allowed = self.bound(q) * scale + 6 * U * (exact.abs() + shift.abs()) + 1e-30
        if y.dtype != torch.float32:
            allowed = allowed + UNIT[y.dtype] * (exact.abs() + allowed) + TINY[y.dtype]
        error = (y.double() - exact).abs()
        assert y.shape == exact.shape
        assert bool((error <= allowed).all()), float((error / allowed).max())


def product(
    kernels: Kernels,
    generator: torch.Generator,
    kind: str,
    n: int,
    k: int,
    *,
    turn: int = 0,
    source: torch.dtype = torch.float32,
) -> Product:
    """A random weight.

    Args:
        turn: sizes of groups take turns.
        source: the dtype of what a dense one is rounded from.
    """
    if kind in FLOAT8:
        sizes = (64, WHOLE, 32, 128, 256)
        return float8(draw_float8(generator, kind, n, k, sizes[turn % len(sizes)]))
    if kind in GROUPED:
        return grouped(draw_codes(generator, kind, n, k, GROUPS[turn % len(GROUPS)]))
    weight = draw(generator, source, n, k)

    def pack(kernels: Kernels, pool: Any, **form: Any) -> PackedLinear:
        return PackedLinear(kernels, pool, weight, kind=kind, **form)

    dense = pack(kernels, pool_of(2)).unpack().double()
    if kind == "s8":  # sums are exact, but unpack() rounds q * scale
        return Product(pack, dense, quantize, lambda q: 2 * U * (q.abs() @ dense.abs().t()))
    reads = torch.bfloat16 if kind in ("bf16", "s8_a16") else torch.float32
    return in_floats(pack, dense, reads, k)


def in_floats(
    pack: Callable[..., PackedLinear], dense: Tensor, reads: torch.dtype, roundings: int
) -> Product:
    """A product whose sums are float32: a sum of k products rounds k times, in any order."""
    size = dense.abs().t()
    return Product(pack, dense, partial(rounded, reads), lambda x: roundings * U * (x.abs() @ size))


def draw_float8(
    generator: torch.Generator, kind: str, n: int, k: int, group: int
) -> QuantizedWeight:
    """Of all finite codes alike, so that a fifth of them are subnormal or large."""
    drawn = torch.randint(256, (n, k), generator=generator).to(torch.uint8).view(FLOAT8[kind])
    values = drawn.float()
    codes = torch.where(values.isfinite(), values, torch.zeros(())).to(drawn.dtype)
    group = min(group, k)
    scale = draw(generator, torch.float32, n, -(-k // group)) / 10_000
    return QuantizedWeight(codes, 8, scale, group)


def float8(weight: QuantizedWeight) -> Product:
    k = weight.shape[1]
    scale = weight.scale.double().repeat_interleave(weight.group, 1)[:, :k]

    def pack(kernels: Kernels, pool: Any, **form: Any) -> PackedLinear:
        return pack_float8(kernels, pool, weight, **form)

    roundings = k + 2 * weight.scale.shape[1]  # a group's scale rounds twice
    return in_floats(pack, weight.codes.double() * scale, torch.bfloat16, roundings)


def draw_codes(
    generator: torch.Generator, kind: str, n: int, k: int, group: int, second: str | None = None
) -> GroupedCodes:
    """Any form of groups, permuted every other time; scales and offsets are from float16.

    Args:
        second: what a group has besides its scale: "zero", "zeros" or "offsets"; None draws it.
    """
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
    second = second or ("zero", "zeros", "offsets")[pick(generator, 0, 2)]
    if kind == "book" or second == "zero":
        return replace(found, zero=pick(generator, 0, 1 << bits))
    if second == "zeros":
        zeros = torch.randint(1 + (1 << bits), groups, generator=generator).float()
        return replace(found, zeros=zeros)
    offsets = (draw(generator, torch.float32, *groups) / 10).half().float()
    return replace(found, offsets=offsets)


def grouped(codes: GroupedCodes) -> Product:
    def pack(kernels: Kernels, pool: Any, **form: Any) -> PackedLinear:
        return PackedLinear.from_codes(kernels, pool, codes, **form)

    return Product(pack, dense(codes, torch.float64), quantize, partial(bound, codes))


def values(codes: GroupedCodes) -> Tensor:
    """What the codes stand for, without zeros: float64 [n, k]."""
    if codes.codebook is None:
        return codes.codes.double()
    return codes.codebook[codes.codes.to(torch.int64)].double()


def dense(codes: GroupedCodes, dtype: torch.dtype) -> Tensor:
    """W [n, k], columns in x's order, computed in `dtype`."""

    def by_column(of_groups: Tensor) -> Tensor:
        return of_groups.repeat_interleave(codes.group, 1)[:, : codes.codes.shape[1]].to(dtype)

    zeros = codes.zero if codes.zeros is None else by_column(codes.zeros)
    w = (values(codes).to(dtype) - zeros) * by_column(codes.scale)
    if codes.offsets is not None:
        w = w + by_column(codes.offsets)
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
    return (2 * groups + 6) * U * size


def assert_rows_are_their_own(
    linear: PackedLinear, x: Tensor, y: Tensor, counts: Iterable[int], generator: torch.Generator
) -> None:
    """`y`, of all rows of `x`, is what each gives alone, and in so many rows together."""
    alone = torch.cat([linear.forward(row) for row in x.split(1)])
    assert torch.equal(alone, y)
    for rows in counts:
        first = pick(generator, 0, len(x) - rows)
        assert torch.equal(linear.forward(x[first : first + rows]), y[first : first + rows])
