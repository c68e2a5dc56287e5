"""Native attention over latents, and the products around it, on every instruction set."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from quire import _native
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.native.kernels import native_kernels
from quire.ops.torch_ops import latent as reference
from quire.ops.torch_ops.reference import pack_linear
from tests.kernels.attention_common import (
    FLOAT8,
    NAN,
    Shape,
    World,
    assert_attended,
    assert_same_bits,
    emulated,
    make_world,
    pick,
    random_spans,
)
from tests.native import FusedKernels, PackedLinear, head_linear, latent_attention, latent_kv_write

B16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CASES = [
    (16, 64, 512, 16, B16, B16, False),
    (20, 64, 64, 32, B16, torch.int8, False),
    (40, 32, 96, 8, B16, FLOAT8[0], True),
    (3, 8, 36, 16, B16, FLOAT8[1], False),
    (130, 4, 20, 16, B16, B16, False),
    (4, 8, 44, 16, F32, F32, False),
    (5, 16, 32, 8, F16, F16, False),
    (7, 2, 50, 32, F32, B16, False),
    (1, 64, 100, 16, F16, torch.int8, False),
]
"""Heads, rope, latent, block size, dtypes of q and cache, whether 8-bit floats have scales."""


@dataclass
class LatentWorld:
    """Sequences of a `World` with one kv head, whose values are the ends of keys."""

    world: World
    rope: int

    def run(
        self,
        isa: str,
        pool: _native.Pool,
        spans: list[tuple[int, int, int]],
        split: bool | None = None,
    ) -> list[Tensor]:
        world, rope = self.world, self.rope
        starts = [0, *itertools.accumulate(last - first for _, first, last in spans)]
        meta = AttentionMetadata(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor([last for _, _, last in spans], dtype=torch.int32),
            block_tables=world.tables[[s for s, _, _ in spans]].contiguous(),
            slot_mapping=torch.empty(0, dtype=torch.int64),
            num_seqs=len(spans),
            block_size=world.shape.block_size,
        )
        q = torch.cat([world.q[s][first:last] for s, first, last in spans])
        wide = torch.full((*q.shape[:2], rope + 3), NAN, dtype=q.dtype)
        wide[..., :rope] = q[..., :rope]
        scale = world.shape.head_dim**-0.5
        out = latent_attention(
            native_kernels(isa), pool, q[..., rope:].contiguous(), wide, world.cache, meta, scale,
            split=split,
        )  # fmt: skip
        return list(out.split([last - first for _, first, last in spans]))


def make_latents(
    generator: torch.Generator, case: tuple[int, int, int, int, torch.dtype, torch.dtype, bool],
    lens: list[int],
) -> LatentWorld:  # fmt: skip
    heads, rope, rank, *rest = case
    world = make_world(generator, Shape(heads, 1, rope + rank, *rest), lens)
    world.v = [k[..., rope:] for k in world.k]
    cache = world.cache
    world.cache = KVCache(cache.k, None, cache.k_scale, k_unit=cache.k_unit)
    return LatentWorld(world, rope)


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_shape_in_any_company(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], case: tuple
) -> None:
    """Within the rounding errors of the kernels; and the same bits in every chunking and batch."""
    few = emulated(isa)
    n = pick(generator, 130, 160 if few else 300)
    latents = make_latents(generator, case, [n, 1, 128, pick(generator, 1, 100)][: 2 if few else 4])
    world = latents.world
    spans = [(s, 0, length) for s, length in enumerate(world.lens)]
    outs = latents.run(isa, pools[1], spans)
    assert_attended(world, isa, outs, spans, None, latent=True)
    cuts = sorted({0, n, n - 1, pick(generator, 1, n - 1), pick(generator, 1, n - 1)})
    for pool, (first, last) in zip(itertools.cycle(pools), itertools.pairwise(cuts), strict=False):
        others = [span for span in random_spans(generator, world.lens) if span[0] != 0]
        others.insert(pick(generator, 0, len(others)), (0, first, last))
        got = latents.run(isa, pool, others)
        assert_same_bits(got[others.index((0, first, last))], outs[0][first:last])


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[5]], ids=str)
def test_threads_that_share_a_sequence_change_nothing(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], case: tuple
) -> None:
    if emulated(isa):
        case = (2, *case[1:])
    latents = make_latents(generator, case, [pick(generator, 2049, 2300), 1024, 40])
    n = latents.world.lens[0]
    spans = [(0, n - 3, n), (1, 1023, 1024), (2, 0, 40), (0, 1020, 1026)]
    whole = latents.run(isa, pools[0], spans, split=False)
    assert_attended(latents.world, isa, whole, spans, None, latent=True)
    ways = [(pools[1], None), (pools[2], True), (pools[0], True)]
    for pool, split in ways[:2] if emulated(isa) else ways:
        for out, expected in zip(latents.run(isa, pool, spans, split), whole, strict=True):
            assert_same_bits(out, expected)


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("dtype", [B16, F16, F32], ids=str)
def test_writing_is_norm_rotation_and_copy(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], dtype: torch.dtype
) -> None:
    """To the bit, in every dtype of the cache."""
    tokens, heads, rope, rank = 21, 3, 8, 36
    kernels = native_kernels(isa)
    positions = torch.randint(0, 50, (tokens,), generator=generator)
    table = torch.randn(50, rope, generator=generator)
    gain = torch.randn(rank, generator=generator).to(dtype)
    slots = torch.randperm(64, generator=generator)[:tokens]
    q = torch.randn(tokens, heads * (rope + 10), generator=generator).to(dtype)
    kv = torch.randn(tokens, rope + rank, generator=generator).to(dtype)
    latent = FusedKernels(kernels, pools[0]).rms_norm(kv[:, rope:].contiguous(), gain, 1e-6)
    key = torch.cat((kv[:, :rope], latent), -1).unsqueeze(1)
    expected, key = reference.rotary(q.view(tokens, heads, -1), key, positions, table)
    for stored in (dtype, B16, torch.int8, *FLOAT8):

        def empty(stored: torch.dtype = stored) -> KVCache:
            scales = torch.zeros(4, 1, 16, dtype=B16) if stored == torch.int8 else None
            unit = 0.5 if stored in FLOAT8 else 1.0
            return KVCache(torch.zeros(4, 1, 16, rope + rank).to(stored), None, scales, k_unit=unit)

        cache, written = empty(), empty()
        turned = latent_kv_write(
            kernels, pools[1], q.clone(), kv.clone(), positions, table, gain, 1e-6, cache, slots,
            heads,
        )  # fmt: skip
        reference.write_kv(key, None, written, slots)
        assert_same_bits(turned, expected)
        assert torch.equal(cache.k.view(torch.uint8), written.k.view(torch.uint8))
        if cache.k_scale is not None:
            assert torch.equal(cache.k_scale, written.k_scale)


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize(("dtype", "kind"), [(B16, "bf16"), (F32, "f32"), (F16, "f16")], ids=str)
def test_each_head_has_a_product_of_its_own(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], dtype: torch.dtype, kind: str
) -> None:
    heads, n, k, first = 3, 40, 36, 5
    kernels = native_kernels(isa)
    weight = torch.randn(heads * n, k, generator=generator).to(dtype)
    packed = PackedLinear(kernels, pools[1], weight, kind=kind, experts=heads)
    x = torch.randn(70, heads, first + k + 2, generator=generator).to(dtype)
    y = head_linear(kernels, pools[2], x, packed, first)
    exact = torch.einsum(
        "thk,hnk->thn", x[..., first : first + k].double(), weight.view(heads, n, k).double()
    )
    size = torch.einsum(
        "thk,hnk->thn", x[..., first : first + k].double().abs(),
        weight.view(heads, n, k).double().abs(),
    )  # fmt: skip
    unit = torch.finfo(dtype).eps / 2
    assert bool(
        ((y.double() - exact).abs() <= 1.01 * (k * 2.0**-23 * size + unit * exact.abs())).all()
    )
    for rows in (1, 3, 33):
        for pool in pools:
            assert_same_bits(
                head_linear(kernels, pool, x[:rows].contiguous(), packed, first), y[:rows]
            )
    plain = pack_linear(weight, experts=heads)
    of_torch = reference.head_linear(x, plain, first)
    assert bool(
        ((of_torch.double() - exact).abs() <= k * 2.0**-23 * size + 2 * unit * exact.abs()).all()
    )
    assert_same_bits(reference.head_linear(x[:3], plain, first), of_torch[:3])


def test_what_does_not_fit_is_refused(pools: list[_native.Pool]) -> None:
    kernels = native_kernels(None)
    q, kv = torch.zeros(2, 3 * 12), torch.zeros(2, 20)
    cache = KVCache(torch.zeros(2, 1, 16, 20), None)
    positions, slots = torch.zeros(2, dtype=torch.int64), torch.arange(2)
    table, gain = torch.zeros(4, 8), torch.ones(12)

    def write(**changed: object) -> None:
        given = {"q": q, "kv": kv, "table": table, "cache": cache, "slots": slots} | changed
        latent_kv_write(
            kernels, pools[0], given["q"], given["kv"], positions, given["table"], gain, 1e-6,
            given["cache"], given["slots"], 3,
        )  # fmt: skip

    write()
    with pytest.raises(ValueError, match=r"wanted float32 \[blocks, 1, block_size, 20\]"):
        write(cache=KVCache(torch.zeros(2, 2, 16, 20), None))
    with pytest.raises(ValueError, match="with 3 heads"):
        write(cache=KVCache(cache.k, cache.k))
    with pytest.raises(ValueError, match="with 3 heads"):
        write(q=torch.zeros(3, 36))
    with pytest.raises(IndexError, match="slot"):
        write(slots=torch.tensor([0, 32]))
    weight = PackedLinear(kernels, pools[0], torch.zeros(6, 4), kind="f32", experts=3)
    with pytest.raises(ValueError, match="y is"):
        head_linear(kernels, pools[0], torch.zeros(2, 3, 8), weight, 5)
