"""Native rotary embedding and KV write, and both fused with the norms of q and k."""

from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from quire.ops.metadata import Heads, KVCache
from quire.ops.torch_ops import int4, reference
from tests.golden.harness import spoiled_cache
from tests.kernels.attention_common import rotation as rotation_matrix
from tests.kernels.fused_common import (
    U,
    assert_close,
    assert_same_bits,
    draw,
    each_dtype,
    each_isa,
    new_generator,
    new_kernels,
)
from tests.native import FusedKernels

pytestmark = pytest.mark.matrix

EPS = 1e-6
MAX_LEN = 300
BLOCK_SIZE = 16
BLOCKS = 9


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int | None


# Head sizes and partial rotations of real models, and odd ones around the vector widths.
SHAPES = [
    Shape(4, 2, 64, 64),
    Shape(2, 2, 128, 128),
    Shape(8, 1, 80, 32),
    Shape(3, 3, 64, None),
    Shape(3, 1, 33, 6),
    Shape(2, 1, 256, 128),
    Shape(1, 17, 12, 10),
    Shape(1, 1, 300, 20),
    Shape(1, 1, 10, 10),
]


def rotation(generator: torch.Generator, rotary_dim: int) -> Tensor:
    angles = torch.rand(MAX_LEN, rotary_dim // 2, generator=generator) * 6.3
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def shapes_for(kv_dtype: torch.dtype) -> list[Shape]:
    """Without heads that int4 does not hold."""
    return [shape for shape in SHAPES if kv_dtype != torch.uint8 or shape.head_dim % 8 == 0]


def new_cache(dtype: torch.dtype, shape: Shape, *, scales: bool = False) -> KVCache:
    size = (BLOCKS, shape.kv_heads, BLOCK_SIZE, shape.head_dim)
    if dtype == torch.uint8:
        return spoiled_cache(size, dtype)
    cache = KVCache(torch.full(size, 7.0).to(dtype), torch.full(size, 9.0).to(dtype))
    if scales or dtype == torch.int8:
        scales = (torch.full(size[:3], x, dtype=torch.bfloat16) for x in (3.0, 5.0))
        cache = KVCache(cache.k, cache.v, *scales)
    return cache


def assert_same_cache(actual: KVCache, expected: KVCache) -> None:
    for part, other in zip(actual.tensors, expected.tensors, strict=True):
        if part.dtype in (torch.int8, torch.uint8):
            assert torch.equal(part, other)
        elif part.itemsize == 1:
            assert torch.equal(part.float().isnan(), other.float().isnan())
            bits, others = part.view(torch.uint8), other.view(torch.uint8)
            assert bool(((bits == others) | part.float().isnan()).all())
        else:
            assert_same_bits(part, other)


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
CONVERTED = [
    (torch.bfloat16, False),
    (torch.int8, True),
    (torch.uint8, True),
    *((dtype, scales) for dtype in FLOAT8 for scales in (False, True)),
]
"""Dtypes that a cache may have under any dtype of the model, and whether it has scales."""


class Step(NamedTuple):
    """One step's inputs. The qkv rows are a slice of wider ones."""

    qkv: Tensor
    positions: Tensor
    slots: Tensor
    cos_sin: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None


def new_step(
    generator: torch.Generator, dtype: torch.dtype, shape: Shape, rows: int, norms: bool
) -> Step:
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return Step(
        draw(generator, dtype, rows, width + 5)[:, 2 : width + 2],
        torch.randint(0, MAX_LEN, (rows,), generator=generator),
        torch.randperm(BLOCKS * BLOCK_SIZE, generator=generator)[:rows],
        rotation(generator, shape.rotary_dim) if shape.rotary_dim else None,
        draw(generator, dtype, shape.head_dim) if norms else None,
        draw(generator, dtype, shape.head_dim) if norms else None,
    )


def fused(kernels: FusedKernels, step: Step, cache: KVCache, shape: Shape) -> Tensor:
    heads: Heads[Tensor] = Heads(*shape[:3], step.q_norm, step.k_norm, eps=EPS)
    return kernels.rope_kv_write(step.qkv, step.positions, step.cos_sin, cache, step.slots, heads)


def unfused(kernels: FusedKernels, step: Step, cache: KVCache, shape: Shape) -> Tensor:
    """The norm is native (the reference sums in another order); the rest is plain torch."""
    widths = [n * shape.head_dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
    q, k, v = (t.unflatten(-1, (-1, shape.head_dim)) for t in step.qkv.split(widths, dim=-1))
    if step.q_norm is not None:
        q = kernels.rms_norm(q, step.q_norm, EPS)
    if step.k_norm is not None:
        k = kernels.rms_norm(k, step.k_norm, EPS)
    if step.cos_sin is not None:
        q, k = reference.rotary(q, k, step.positions, step.cos_sin)
    reference.write_kv(k, v, cache, step.slots)
    return q


def write_kv(kernels: FusedKernels, k: Tensor, v: Tensor, cache: KVCache, slots: Tensor) -> None:
    """Store k and v [T, kv_heads, D], of no query head, as they are."""
    _, kv_heads, width = k.shape
    shape = Shape(0, kv_heads, width, None)
    step = Step(torch.cat([k, v], 1).flatten(1), torch.zeros_like(slots), slots, None, None, None)
    fused(kernels, step, cache, shape)


@each_isa
@each_dtype
def test_rotation(isa: str, dtype: torch.dtype) -> None:
    """Two products and a sum, rounded one by one: 2 units of each product, 1 of the sum."""
    kernels, generator = new_kernels(isa), new_generator()
    for shape in SHAPES:
        if shape.rotary_dim is None:
            continue
        step = new_step(generator, dtype, shape, 21, norms=False)
        y = fused(kernels, step, new_cache(dtype, shape), shape)
        x = step.qkv.unflatten(-1, (-1, shape.head_dim))[:, : shape.heads]
        cos, sin = step.cos_sin.double()[step.positions].unsqueeze(1).chunk(2, dim=-1)
        a, b = x.double()[..., : shape.rotary_dim].chunk(2, dim=-1)
        exact = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        sizes = (a * cos).abs() + (b * sin).abs(), (b * cos).abs() + (a * sin).abs()
        assert_close(y[..., : shape.rotary_dim], exact, 2 * U * torch.cat(sizes, -1))
        assert_same_bits(y[..., shape.rotary_dim :], x[..., shape.rotary_dim :])


@each_isa
@each_dtype
def test_write_kv(isa: str, dtype: torch.dtype) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    for shape in SHAPES:
        wide = draw(generator, dtype, 40, (2 * shape.kv_heads) * shape.head_dim)
        k, v = (t.unflatten(-1, (-1, shape.head_dim)) for t in wide.chunk(2, dim=-1))
        slots = torch.randperm(BLOCKS * BLOCK_SIZE, generator=generator)[:40]
        for kv_dtype, scales in ((dtype, False), *CONVERTED):
            if shape not in shapes_for(kv_dtype):
                continue
            cache, expected = (new_cache(kv_dtype, shape, scales=scales) for _ in range(2))
            write_kv(kernels, k, v, cache, slots)
            reference.write_kv(k, v, expected, slots)
            assert_same_cache(cache, expected)


@each_isa
@each_dtype
@pytest.mark.parametrize("held", [None, *CONVERTED], ids=str)
def test_fused_is_what_it_fuses(
    isa: str, dtype: torch.dtype, held: tuple[torch.dtype, bool] | None
) -> None:
    """To the bit, and nothing else of the cache is touched."""
    kernels, generator = new_kernels(isa), new_generator()
    kv_dtype, scales = held or (dtype, False)
    first, *others = shapes_for(kv_dtype)
    steps = [
        *product([first], (False, True), (0, 1, 2, 37)),
        *product(others, (False, True), (1, 37)),
    ]
    for shape, norms, rows in steps:
        step = new_step(generator, dtype, shape, rows, norms)
        cache, expected = (new_cache(kv_dtype, shape, scales=scales) for _ in range(2))
        if kv_dtype.itemsize == 1:
            cache, expected = (c._replace(k_unit=0.07, v_unit=3.0) for c in (cache, expected))
        q = fused(kernels, step, cache, shape)
        assert q.is_contiguous()
        assert_same_bits(q, unfused(kernels, step, expected, shape))
        assert_same_cache(cache, expected)


@each_isa
@each_dtype
@pytest.mark.parametrize("wide", [False, True], ids=["rounded", "float32 gain"])
def test_norms_over_all_heads(isa: str, dtype: torch.dtype, wide: bool) -> None:
    """To the bit those of the normed parts; v and what lies beside the rows are left alone."""
    kernels, generator = new_kernels(isa), new_generator()
    for shape, rows in product(SHAPES, (0, 1, 37)):
        widths = [n * shape.head_dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
        weights = [draw(generator, torch.float32 if wide else dtype, width) for width in widths[:2]]
        step = new_step(generator, dtype, shape, rows, norms=False)
        parts = zip(step.qkv.split(widths, dim=-1), weights, strict=False)
        normed = [kernels.rms_norm(part, weight, EPS) for part, weight in parts]
        plain = step._replace(qkv=torch.cat([*normed, step.qkv[:, -widths[2] :]], dim=-1))
        room = step.qkv._base
        before, width = room.clone(), step.qkv.shape[1]
        cache, expected = (new_cache(dtype, shape) for _ in range(2))
        full = step._replace(q_norm=weights[0], k_norm=weights[1])
        assert_same_bits(fused(kernels, full, cache, shape), fused(kernels, plain, expected, shape))
        assert_same_cache(cache, expected)
        assert_same_bits(room[:, :2], before[:, :2])
        assert_same_bits(room[:, 2 + width - widths[2] :], before[:, 2 + width - widths[2] :])


@each_isa
@each_dtype
@pytest.mark.parametrize("held", [None, (torch.int8, True)], ids=str)
def test_wide_norms_of_heads(
    isa: str, dtype: torch.dtype, held: tuple[torch.dtype, bool] | None
) -> None:
    """Gemma 3's: weights in float32, whatever the dtype."""
    kernels, generator = new_kernels(isa), new_generator()
    kv_dtype, scales = held or (dtype, False)
    for shape in SHAPES:
        step = new_step(generator, dtype, shape, 5, norms=False)
        q_norm, k_norm = (1 + draw(generator, torch.float32, shape.head_dim) for _ in range(2))
        step = step._replace(q_norm=q_norm, k_norm=k_norm)
        cache, expected = (new_cache(kv_dtype, shape, scales=scales) for _ in range(2))
        q = fused(kernels, step, cache, shape)
        assert_same_bits(q, unfused(kernels, step, expected, shape))
        assert_same_cache(cache, expected)
        if dtype != torch.float32:
            with pytest.raises(ValueError, match="k_norm is"):
                fused(kernels, step._replace(k_norm=k_norm.to(dtype)), cache, shape)


@each_isa
@each_dtype
@pytest.mark.parametrize("held", [None, (torch.int8, True)], ids=str)
def test_norms_of_values(
    isa: str, dtype: torch.dtype, held: tuple[torch.dtype, bool] | None
) -> None:
    """Gemma 4's; and queries alone, which leave the cache as it is."""
    kernels, generator = new_kernels(isa), new_generator()
    kv_dtype, scales = held or (dtype, False)
    for shape in SHAPES:
        step = new_step(generator, dtype, shape, 5, norms=True)
        gain, width = draw(generator, dtype, shape.head_dim), shape.kv_heads * shape.head_dim
        v = step.qkv[:, -width:].unflatten(-1, (-1, shape.head_dim))
        normed = kernels.rms_norm(v, gain, EPS).flatten(1)
        plain = step._replace(qkv=torch.cat([step.qkv[:, :-width], normed], 1))
        cache, expected = (new_cache(kv_dtype, shape, scales=scales) for _ in range(2))
        heads = Heads(*shape[:3], step.q_norm, step.k_norm, gain, EPS)
        q = kernels.rope_kv_write(step.qkv, step.positions, step.cos_sin, cache, step.slots, heads)
        assert_same_bits(q, unfused(kernels, plain, expected, shape))
        assert_same_cache(cache, expected)
        alone = step.qkv[:, : shape.heads * shape.head_dim].contiguous()
        again = kernels.rope_kv_write(
            alone, step.positions, step.cos_sin, cache, step.slots,
            heads._replace(kv=0, k_norm=None, v_norm=None),
        )  # fmt: skip
        assert_same_bits(again, q)
        assert_same_cache(cache, expected)


@each_dtype
def test_int8_is_within_half_a_step(dtype: torch.dtype) -> None:
    """The scale is the next bfloat16; an element is exact to half of it and two roundings."""
    generator = new_generator()
    exponents = torch.randint(-13, 14, (200, 3, 1), generator=generator)
    x = (draw(generator, torch.float32, 200, 3, 64) * 2.0**exponents).to(dtype)
    q, scale = reference.quantize_heads(x)
    top = x.double().abs().amax(-1)
    above = scale.double() / (top / 127)
    assert bool((above >= 1 - U).all())
    assert bool((above <= (1 + U) * (1 + 2.0**-7)).all())
    assert int(q.min()) >= -127
    step = scale.double().unsqueeze(-1)
    error = (q.double() * step - x.double()).abs()
    assert bool((error <= step * (0.5 + 128 * 2 * U)).all())


@each_isa
def test_int4_is_the_nearest_level_of_the_rotated_head(isa: str) -> None:
    """Up to the roundings of rotation and division."""
    kernels, generator = new_kernels(isa), new_generator()
    for width in (128, 96, 8):
        x = draw(generator, torch.float32, 40, 1, width)
        x[:, :, 3] *= 50.0
        cache, turn = new_cache(torch.uint8, Shape(1, 1, width, None)), rotation_matrix(width)
        write_kv(kernels, x, x, cache, torch.arange(40))
        for heads, sizes in zip(int4.parts(cache), (int4.KEY_SIZES, int4.VALUE_SIZES), strict=True):
            stored = int4.Heads(*(t if t is None else t.flatten(0, 2)[:40] for t in heads))
            scale = int4.scale_of(stored.scale).double().unsqueeze(1)
            top = (x[:, 0].double() @ turn).abs().amax(1, keepdim=True)
            assert bool(((top / (127 * scale) - 1).abs() <= 1 / 16 + 30 * U).all())
            exact = x[:, 0].double() @ turn / scale
            error = (exact - int4.unpack(stored).double() / scale).abs()
            size = torch.tensor(sizes, dtype=torch.float64)
            nearest = (exact.abs().unsqueeze(-1) - size).abs().amin(-1)
            rounding = 10 * U * x[:, 0].double().abs() @ turn.abs() / scale + 128 * U
            assert bool((error <= nearest + 2 * rounding).all())


@each_isa
@pytest.mark.parametrize("kv_dtype", FLOAT8, ids=str)
def test_8_bit_floats_are_the_nearest(isa: str, kv_dtype: torch.dtype) -> None:
    """Every float16 and what lies around 8-bit floats, as torch rounds it; too large ones saturate,
    and NaN stays NaN."""
    most = torch.finfo(kv_dtype).max
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    codes = torch.arange(256, dtype=torch.uint8).view(kv_dtype).float()
    codes = codes[codes.isfinite()].sort().values
    middles = (codes[1:] + codes[:-1]) / 2
    inf = torch.tensor(torch.inf)
    near = [torch.nextafter(middles, -inf), middles, torch.nextafter(middles, inf)]
    special = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 1e30, -1e30, 1e-30])
    x = torch.cat([halves.float(), *near, special])
    x = torch.cat([x, x.new_zeros(-len(x) % 128)]).view(-1, 1, 128)
    cache = KVCache(*(torch.zeros(len(x) // 16 + 1, 1, 16, 128).to(kv_dtype) for _ in range(2)))
    write_kv(new_kernels(isa), x, x, cache, torch.arange(len(x)))
    expected = x.clamp(-most, most).to(kv_dtype).view(torch.uint8)
    for part in (cache.k, cache.v):
        written = part.view(-1, 128)[: len(x)].view(torch.uint8)
        assert bool(((written == expected[:, 0]) | x[:, 0].isnan()).all())
        assert torch.equal(part.view(-1, 128)[: len(x)].float().isnan(), x[:, 0].isnan())


@each_isa
@each_dtype
def test_int8_of_zeros_and_of_what_is_not_finite(isa: str, dtype: torch.dtype) -> None:
    kernels, shape = new_kernels(isa), Shape(1, 1, 40, None)
    k = torch.ones(4, 1, 40, dtype=dtype)
    k[0], k[1, 0, 7], k[2, 0, 39] = 0.0, torch.nan, -torch.inf
    cache = new_cache(torch.int8, shape)
    write_kv(kernels, k, k, cache, torch.arange(4))
    scales = cache.v_scale[0, 0, :4]
    assert scales.isfinite().tolist() == [True, False, False, True]
    assert not cache.v[0, 0, 0].any()
    assert float(scales[3]) == 130 / 128**2  # the next above 1 / 127, which lies above 129 / 128**2
    assert cache.v[0, 0, 3].tolist() == [126] * 40


@each_isa
def test_norm_and_rotation_against_exact_arithmetic(isa: str) -> None:
    kernels, generator = new_kernels(isa), new_generator()
    shape = Shape(4, 2, 64, 64)
    step = new_step(generator, torch.float32, shape, 30, norms=True)
    cache = new_cache(torch.float32, shape)
    q = fused(kernels, step, cache, shape)
    heads = step.qkv.double().unflatten(-1, (-1, 64))
    scaled = heads[:, :4] / torch.sqrt(heads[:, :4].pow(2).mean(-1, keepdim=True) + EPS)
    normed = scaled * step.q_norm.double()
    cos, sin = step.cos_sin.double()[step.positions].unsqueeze(1).chunk(2, dim=-1)
    a, b = normed.chunk(2, dim=-1)
    exact = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    sizes = (a.abs() + b.abs()).repeat(1, 1, 2)
    # The norm as in test_norms (two roundings, 64 / 32 + 12 units), then the rotation.
    assert_close(q, exact, (2 + 64 / 32 + 12 + 2) * U * sizes)


@each_dtype
def test_threads_and_batch_do_not_matter(dtype: torch.dtype) -> None:
    generator, shape = new_generator(), Shape(8, 4, 128, 128)
    step = new_step(generator, dtype, shape, 130, norms=True)
    cache, int8 = new_cache(dtype, shape), new_cache(torch.int8, shape)
    q = fused(new_kernels(), step, cache, shape)
    fused(new_kernels(), step, int8, shape)
    for threads in (2, 3):
        kernels = new_kernels(threads=threads)
        for kv_dtype, expected in ((dtype, cache), (torch.int8, int8)):
            again = new_cache(kv_dtype, shape)
            assert_same_bits(fused(kernels, step, again, shape), q)
            assert_same_cache(again, expected)
    alone = new_cache(dtype, shape)
    for row in torch.randperm(130, generator=generator)[:20].tolist():
        one = step._replace(
            qkv=step.qkv[row : row + 1],
            positions=step.positions[row : row + 1],
            slots=step.slots[row : row + 1],
        )
        assert_same_bits(fused(new_kernels(), one, alone, shape)[0], q[row])
        block, offset = divmod(int(step.slots[row]), BLOCK_SIZE)
        assert_same_bits(alone.k[block, :, offset], cache.k[block, :, offset])


def test_positions_and_slots_outside_their_tables_are_refused() -> None:
    kernels, generator, shape = new_kernels(), new_generator(), Shape(2, 1, 64, 64)
    step = new_step(generator, torch.float32, shape, 4, norms=False)
    cache = new_cache(torch.float32, shape)
    untouched = KVCache(cache.k.clone(), cache.v.clone())
    for bad in (-1, MAX_LEN):
        positions = step.positions.clone()
        positions[2] = bad
        with pytest.raises(IndexError, match=f"position {bad} of row 2"):
            fused(kernels, step._replace(positions=positions), cache, shape)
    for bad in (-1, BLOCKS * BLOCK_SIZE):
        slots = step.slots.clone()
        slots[3] = bad
        with pytest.raises(IndexError, match=f"slot {bad} of row 3"):
            fused(kernels, step._replace(slots=slots), cache, shape)
    assert_same_bits(cache.k, untouched.k)
    assert_same_bits(cache.v, untouched.v)


def test_what_does_not_fit_is_refused() -> None:
    kernels, generator, shape = new_kernels(), new_generator(), Shape(2, 1, 64, 64)
    step = new_step(generator, torch.float32, shape, 4, norms=True)
    cache = new_cache(torch.float32, shape)
    narrow = new_cache(torch.float32, Shape(2, 1, 32, 32))
    int8 = new_cache(torch.int8, shape)
    other = {
        "qkv": (step._replace(qkv=step.qkv[:, 1:]), cache),
        "positions": (step._replace(positions=step.positions.int()), cache),
        "slot_mapping": (step._replace(slots=step.slots[:2]), cache),
        "cos_sin": (step._replace(cos_sin=torch.ones(MAX_LEN, 66)), cache),
        "q_norm": (step._replace(q_norm=torch.ones(63)), cache),
        "k_norm": (step._replace(k_norm=torch.ones(64).half()), cache),
        "cache.k": (step, narrow),
        "cache.v": (step, KVCache(cache.k, narrow.v)),
        "cache.k_scale": (step, int8._replace(k_scale=torch.ones(3))),
        "cache.v_scale": (step, int8._replace(v_scale=None)),
    }
    for name, (bad_step, bad_cache) in other.items():
        with pytest.raises(ValueError, match=f"{name} is"):
            fused(kernels, bad_step, bad_cache, shape)
