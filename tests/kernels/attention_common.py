"""Random sequences over a paged cache, and attention to them in float64, for the kernels' tests.

Inputs are fresh in every run; QUIRE_TEST_SEED repeats the run whose seed a failure shows.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from quire import _native
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.torch_ops import int4
from quire.ops.torch_ops import paged_attention as plain
from quire.ops.torch_ops.reference import quantize_heads, to_float8, write_kv
from tests.golden.harness import spoiled_cache
from tests.isas import ISAS
from tests.kernels.fused_common import INTEGER, TINY, UNIT, choose, pick
from tests.native import paged_attention

NAN = float("nan")


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int8, torch.uint8)


PLAIN = "torch"
with_plain = pytest.mark.parametrize("isa", [*ISAS, PLAIN])
"""The kernels, and the reference in torch."""


def emulated(isa: str) -> bool:
    """Every instruction on tiles costs a signal then: some tests do less."""
    return isa.endswith("_emulated")


def slow(isa: str) -> bool:
    """Some tests do less: a loop in place of vectors takes ten times as long."""
    return emulated(isa) or isa == "portable"


@dataclass
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    scales: bool = False


@dataclass
class World:
    """Sequences with all their keys, values and queries, scattered over a cache.

    Slots that no sequence owns, and table entries past a sequence's end, hold what must not be
    read: NaN (scales of NaN, in an int8 cache), and block numbers far outside the cache. Of a
    cache of 8 bits, k and v are what it holds, in float64; of an int4 cache (uint8) they are
    rotated, as it holds them.
    """

    shape: Shape
    lens: list[int]
    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    cache: KVCache
    tables: Tensor
    sinks: Tensor | None = None
    chunked: bool = False

    def run(
        self,
        isa: str,
        pool: _native.Pool,
        spans: list[tuple[int, int, int]],
        window: int | None,
        split: bool | None = None,
        softcap: float | None = None,
        *,
        causal: bool = True,
    ) -> list[Tensor]:
        """Attention of tokens [first, last) of a sequence for each (sequence, first, last)."""
        starts = [0]
        for _, first, last in spans:
            starts.append(starts[-1] + last - first)
        meta = AttentionMetadata(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor([last for _, _, last in spans], dtype=torch.int32),
            block_tables=self.tables[[s for s, _, _ in spans]].contiguous(),
            slot_mapping=torch.empty(0, dtype=torch.int64),
            num_seqs=len(spans),
            block_size=self.shape.block_size,
        )
        q, scale = torch.cat([self.q[s][a:b] for s, a, b in spans]), self.shape.head_dim**-0.5
        rules = AttentionRules(scale, window, softcap, causal, self.sinks, self.chunked)
        if isa == PLAIN:
            out = plain.paged_attention(q, self.cache, meta, rules)
        else:
            kernels = _native.table(isa)
            out = paged_attention(kernels, pool, q, self.cache, meta, rules, split=split)
        return list(out.split([last - first for _, first, last in spans]))


def make_world(generator: torch.Generator, shape: Shape, lens: list[int]) -> World:
    def draw(length: int, heads: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(length, heads, shape.head_dim, generator=generator).to(dtype)

    q = [draw(n, shape.heads, shape.dtype) for n in lens]
    eight_bits, scaled = shape.kv_dtype.itemsize == 1, shape.scales or shape.kv_dtype in INTEGERS
    kv_dtype = torch.float32 if eight_bits else shape.kv_dtype
    k = [draw(n, shape.kv_heads, kv_dtype) for n in lens]
    v = [draw(n, shape.kv_heads, kv_dtype) for n in lens]
    size = shape.block_size
    counts = [-(-n // size) for n in lens]
    blocks = torch.randperm(sum(counts) + 3, generator=generator)
    room = (len(blocks), shape.kv_heads, size, shape.head_dim)
    cache = spoiled_cache(room, shape.kv_dtype)
    if eight_bits and not scaled:
        cache = cache._replace(k_unit=0.4, v_unit=0.3)
    elif eight_bits and cache.k_scale is None:
        k_scale, v_scale = (torch.full(room[:3], NAN, dtype=torch.bfloat16) for _ in range(2))
        cache = cache._replace(k_scale=k_scale, v_scale=v_scale)
    tables = torch.full((len(lens), max(counts) + 2), 2**30, dtype=torch.int32)
    used = 0
    for s, (n, count) in enumerate(zip(lens, counts, strict=True)):
        tables[s, :count] = blocks[used : used + count]
        slots = torch.arange(n)
        block, offset = blocks[used + slots // size], slots % size
        used += count
        if cache.packed:
            write_kv(k[s], v[s], cache, block * size + offset)
            k[s], v[s] = (
                int4.unpack(int4.pack(x, keys=keys)).double()
                for x, keys in ((k[s], True), (v[s], False))
            )
            continue
        for cached, scales, unit, values in (
            (cache.k, cache.k_scale, cache.k_unit, k),
            (cache.v, cache.v_scale, cache.v_unit, v),
        ):
            if scales is not None:
                q8, scale = quantize_heads(values[s], cached.dtype)
                scales[block, :, offset] = scale
                values[s] = q8.double() * scale.double().unsqueeze(-1)
            elif eight_bits:
                q8 = to_float8(values[s] / unit, cached.dtype)
                values[s] = q8.double() * unit
            else:
                cached[block, :, offset] = values[s]
                continue
            cached.view(torch.uint8)[block, :, offset] = q8.view(torch.uint8)
    return World(shape, lens, q, k, v, cache, tables)


def assert_attended(
    world: World,
    isa: str,
    outs: list[Tensor],
    spans,
    window: int | None,
    softcap: float | None = None,
    *,
    causal: bool = True,
    exact_weights: bool = False,
    latent: bool = False,
    kept: torch.dtype = torch.float32,
) -> None:
    """Each output is softmax(scale q k) v within the rounding errors that the kernels are allowed.

    With exact weights w and delta the largest error of a score, weights are off by a factor of at
    most exp(2 delta), and so is their normalized sum of values by at most 2 delta sum w |v|. A
    score adds head_dim products one after another at worst and is scaled (twice, with int8) and
    shifted by the maximum, each rounding by 2^-24 of what it has; the exponential adds 2 units in
    the last place. A cap makes no error larger, and adds 5 units of tanh and one product.
    Sums over n keys, the scales of int8 values, the rescaling of partial sums and the division
    round some n + 32 times. Weights, times the scales of int8 values, are taken as 0 below 2^-109.
    At the end comes one rounding to q's dtype.

    With queries of bfloat16, instructions for bfloat16 read weights as such, and those for
    integers read elements of q, and the products of weights and scales, as multiples of 2^-15 of
    the largest. No kernel does with `exact_weights`, and none uses integers for `latent`.

    Int4 is computed with rotated elements, of which those of q round once per step of the rotation
    (on tiles once more, to bfloat16), and the result is rotated back: an error spreads over its
    run of the head. Kernels without integers or tiles round q to multiples of 1/127 of the largest,
    and products of weights and scales to 1/1023 of the largest in a tile of 128 keys.
    """
    shape = world.shape
    exact_weights = exact_weights or isa == PLAIN
    packed = shape.kv_dtype == torch.uint8
    int8 = shape.kv_dtype in INTEGERS
    turn, turning = rotation(shape.head_dim), 10 * 2.0**-24
    bfloat16 = (
        not exact_weights
        and shape.dtype == torch.bfloat16
        and shape.kv_dtype
        in (
            torch.bfloat16,
            *INTEGERS,
            *FLOAT8,
        )
    )
    integers = isa == "avx512_vnni" and bfloat16 and int8 and not latent
    rounded = bfloat16 and (isa.startswith("amx") or (isa == "avx512_vnni" and not integers))
    pairs = isa.startswith(("avx512_vnni", "amx")) and bfloat16 and shape.head_dim % 32 == 0
    coarse = packed and not exact_weights and not pairs
    for (s, first, last), out in zip(spans, outs, strict=True):
        group = shape.heads // shape.kv_heads
        q = world.q[s][first:last].double().transpose(0, 1)
        if packed:
            turned = turning * q.abs() @ turn.abs()
            if kept != torch.float32:
                turned = turned + 2 * UNIT[kept] * (q @ turn).abs() + TINY[kept]
            if rounded and isa.startswith("amx"):
                turned = turned + UNIT[torch.bfloat16] * q.abs()
            q = q @ turn
        if coarse:
            q, turned = to_units(q, turned)
        k, v = (x[s][:last].double().transpose(0, 1) for x in (world.k, world.v))
        scale = shape.head_dim**-0.5
        row, column = torch.arange(first, last).unsqueeze(1), torch.arange(last)
        hidden = (column > row) & causal
        if world.chunked:
            hidden |= column // window != row // window
        elif window is not None:
            hidden |= (column - row).abs() >= window
        scores = of_groups(scale * q, k.transpose(1, 2))
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(hidden, -torch.inf)
        if world.sinks is not None:
            sinks = world.sinks.double().view(-1, 1, 1).expand(-1, last - first, 1)
            scores = torch.cat((scores, sinks), -1)
        weights = scores.softmax(-1)[..., :last]
        exact, size = of_groups(weights, v), of_groups(weights, v.abs())
        coarseness = of_tiles(weights, v) / 2046 if coarse else 0.0
        sizes = k.abs().transpose(1, 2)
        terms = of_groups(scale * q.abs(), sizes).amax(-1, keepdim=True)
        delta = (shape.head_dim + 8) * 2.0**-24 * terms + 4 * 2.0**-24
        delta += 6 * 2.0**-24 * (softcap or 0.0)
        if packed:
            delta += of_groups(scale * turned, sizes).amax(-1, keepdim=True)
        least = 57344.0 if shape.scales else 127.0 if int8 else float(v.abs().max())
        absolute = TINY[shape.dtype] + 2.0**-109 * last * least
        if integers:
            keys, most = k.abs().sum(-1).amax(-1), v.abs().amax((-2, -1))
            keys, most = (x.repeat_interleave(group).view(-1, 1, 1) for x in (keys, most))
            delta += 2.0**-16 * scale * q.abs().amax(-1, keepdim=True) * keys
            absolute = absolute + 2.0**-16 * last * weights.amax(-1, keepdim=True) * most
        error = 2 * delta + (last + 32) * 2.0**-24 + (UNIT[torch.bfloat16] if rounded else 0)
        if kept != torch.float32:
            size_kept = 2.0 if least > float(v.abs().max()) else least
            error, absolute = error + UNIT[kept], absolute + TINY[kept] * last * size_kept
        unit = UNIT[shape.dtype]
        inner = error * size + coarseness
        if packed:
            inner = inner @ turn.abs() + turning * exact.abs() @ turn.abs()
            exact, absolute = exact @ turn, absolute * turn.abs().sum(0)
        tolerance = 1.01 * (inner * (1 + unit) + unit * exact.abs()) + absolute
        assert out.dtype == shape.dtype
        difference = (out.transpose(0, 1).double() - exact).abs()
        assert bool((difference <= tolerance).all()), float((difference / tolerance).max())


def of_groups(x: Tensor, y: Tensor) -> Tensor:
    """Return x [heads, n, a] times y [kv_heads, a, b]; as many heads in turn share one of y's."""
    return (x.reshape(len(y), -1, x.shape[-1]) @ y).view(*x.shape[:2], -1)


def to_units(q: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Return q in multiples of 1/127 of the largest of a row, and by how much each may be off.

    Where an error of q leaves open which multiple is the nearest, that is one multiple.
    """
    unit = q.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    units = q / unit
    slack = 2 * error.amax(-1, keepdim=True) / unit + 127 * 2.0**-22
    open_ = (units - units.round()).abs() > 0.5 - slack
    return units.round() * unit, unit * (open_ + slack)


def of_tiles(weights: Tensor, v: Tensor) -> Tensor:
    """Return the sum over tiles of 128 keys: the largest weight times scale, times all levels."""
    scale = v.abs().amax(-1) / 127
    levels = (v.abs() / scale.clamp_min(1e-30).unsqueeze(-1)).split(128, 1)
    scaled = of_rows(weights, scale).split(128, -1)
    total = sum(
        of_groups(w.amax(-1, keepdim=True), x.sum(1, keepdim=True))
        for w, x in zip(scaled, levels, strict=True)
    )
    assert isinstance(total, Tensor)
    return total


def of_rows(weights: Tensor, scale: Tensor) -> Tensor:
    """Return weights [heads, n, keys] times the scales [kv_heads, keys] of their heads."""
    group = len(weights) // len(scale)
    return weights * scale.repeat_interleave(group, 0).unsqueeze(1)


def rotation(head_dim: int) -> Tensor:
    """The orthonormal Hadamard matrix (Sylvester 1867), repeated along the head; float64."""
    block, size = torch.ones(1, 1, dtype=torch.float64), head_dim & -head_dim
    while len(block) < size:
        block = torch.cat((torch.cat((block, block), 1), torch.cat((block, -block), 1)))
    return torch.block_diag(*[block / size**0.5] * (head_dim // size))


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    kind = INTEGER[actual.dtype]
    assert torch.equal(actual.contiguous().view(kind), expected.contiguous().view(kind))


def random_shape(generator: torch.Generator, isa: str, **given: object) -> Shape:
    groups = (1, 2, 3, 4, 7, 8, 16, 17, 48, 64)
    few = slow(isa) or "head_dim" in given
    group = choose(generator, *groups[: 8 if few else None])
    kv_heads = 1 if group > 8 else choose(generator, 1, 2, 3)
    dtypes = list(UNIT)
    drawn: dict[str, object] = {
        "kv_heads": kv_heads,
        "heads": given.get("kv_heads", kv_heads) * group,
        "head_dim": 8 * pick(generator, 4, 32),
        "block_size": choose(generator, 8, 16, 32),
        "dtype": dtypes[pick(generator, 0, 2)],
        "kv_dtype": [*dtypes, *INTEGERS, *FLOAT8][pick(generator, 0, 6)],
    }
    shape = Shape(**(drawn | given))  # type: ignore[arg-type]
    if "head_dim" not in given:  # the oracle's time grows with both
        most = (2048 if slow(isa) else 4096) // shape.heads // 8 * 8
        shape.head_dim = max(32, min(shape.head_dim, most))
    return shape


def random_spans(generator: torch.Generator, lens: list[int]) -> list[tuple[int, int, int]]:
    """For each sequence, in a random order, its last token alone, all of them or some."""
    spans = []
    for s in torch.randperm(len(lens), generator=generator).tolist():
        n = lens[s]
        last = choose(generator, n, n, pick(generator, 1, n))
        spans.append((s, choose(generator, last - 1, 0, pick(generator, 0, last - 1)), last))
    return spans


BFLOAT16 = {"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
INT8 = {"dtype": torch.bfloat16, "kv_dtype": torch.int8}
INT4 = {"dtype": torch.bfloat16, "kv_dtype": torch.uint8}
E4M3 = {"dtype": torch.bfloat16, "kv_dtype": torch.float8_e4m3fn}
E5M2 = {"dtype": torch.bfloat16, "kv_dtype": torch.float8_e5m2}
FLOAT32 = {"dtype": torch.float32, "kv_dtype": torch.float32}
SHAPES: list[dict[str, object]] = [
    {"kv_heads": 2, "heads": 4, "head_dim": 128, "block_size": 16, **BFLOAT16},
    {"kv_heads": 2, "heads": 4, "head_dim": 128, "block_size": 16, **FLOAT32},
    {"kv_heads": 1, "heads": 7, "head_dim": 64, "block_size": 32, **BFLOAT16},
    {"kv_heads": 3, "heads": 3, "head_dim": 256, "block_size": 8, **BFLOAT16},
    {"kv_heads": 1, "heads": 5, "head_dim": 40, "block_size": 8, **BFLOAT16},
    {"kv_heads": 2, "heads": 2, "head_dim": 32, "block_size": 8, **FLOAT32},
    {},
    {},
    {"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16},
    {"head_dim": 96, **BFLOAT16},
    {"kv_heads": 2, "heads": 4, "head_dim": 128, "block_size": 16, **INT8},
    {"kv_heads": 3, "heads": 21, "head_dim": 64, "block_size": 8, **INT8},
    {"dtype": torch.float32, "kv_dtype": torch.int8},
    {"kv_heads": 2, "heads": 4, "head_dim": 128, "block_size": 16, **INT4},
    {"kv_heads": 3, "heads": 21, "head_dim": 96, "block_size": 8, **INT4},
    {"kv_dtype": torch.uint8},
    {"kv_heads": 2, "heads": 4, "head_dim": 128, "block_size": 16, **E4M3},
    {"kv_heads": 3, "heads": 21, "head_dim": 64, "block_size": 8, **E5M2},
    {"kv_heads": 1, "heads": 16, "head_dim": 192, "block_size": 32, **E4M3, "scales": True},
    {"head_dim": 96, **E4M3},
    {"dtype": torch.float32, "kv_dtype": torch.float8_e5m2},
]
LONG_SHAPES = [SHAPES[i] for i in (0, 1, 10, 13, 16)]
