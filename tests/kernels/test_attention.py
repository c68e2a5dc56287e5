"""Native paged attention against a float64 oracle, on every instruction set of this machine.

Inputs are fresh in every run; QUIRE_TEST_SEED repeats the run whose seed a failure shows.
"""

import pytest
import torch

from quire import _native
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from tests.kernels.attention_common import (
    INTEGERS,
    LONG_SHAPES,
    NAN,
    SHAPES,
    Shape,
    assert_attended,
    assert_same_bits,
    choose,
    make_world,
    pick,
    random_shape,
    random_spans,
    slow,
    with_plain,
)
from tests.native import paged_attention


@with_plain
@pytest.mark.parametrize("given", SHAPES, ids=str)
def test_ragged_batches(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    shape = random_shape(generator, isa, **given)
    print(shape)
    lens = [1, 16, 128, 129, pick(generator, 1, 200)]
    world = make_world(generator, shape, lens)
    windows = (None, choose(generator, 1, 5, 128, pick(generator, 1, 200)))
    for window in windows[slow(isa) :]:
        spans = random_spans(generator, lens)
        outs = world.run(isa, pools[1], spans, window)
        assert_attended(world, isa, outs, spans, window)


@with_plain
@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("given", [*SHAPES[:4], *SHAPES[10:17]], ids=str)
def test_capped_scores(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    """Gemma 2's; with queries large enough for the cap to matter."""
    shape = random_shape(generator, isa, **({"kv_heads": 1} | given))
    print(shape)
    n = 200 if slow(isa) else 1100
    lens = [1, 129, pick(generator, 1, 300), n]
    world = make_world(generator, shape, lens)
    for q in world.q:
        q *= 5.0
    caps = [(50.0, None), (1.5, pick(generator, 1, 200))]
    for softcap, window in caps[1:] if slow(isa) else caps:
        # Long contexts with few queries: the oracle costs queries × keys.
        spans = [(s, max(a, b - 150), b) for s, a, b in random_spans(generator, lens)]
        outs = world.run(isa, pools[1], spans, window, softcap=softcap)
        assert_attended(world, isa, outs, spans, window, softcap)
        (alone,) = world.run(isa, pools[0], [(3, n - 1, n)], window, softcap=softcap)
        (whole,) = world.run(isa, pools[2], [(3, n - 100, n)], window, softcap=softcap)
        assert_same_bits(alone[0], whole[99])


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("given", SHAPES, ids=str)
def test_a_query_of_zeros_attends_to_all_keys_alike(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    """Found by `tests.fuzz.pooling`: with an int4 cache the result was NaN."""
    world = make_world(generator, random_shape(generator, isa, **given), [40])
    world.q[0][::2] = 0.0
    spans = [(0, 0, 31), (0, 38, 39)]
    assert_attended(world, isa, world.run(isa, pools[1], spans, None), spans, None)


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("given", LONG_SHAPES, ids=str)
def test_long_contexts(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    shape = random_shape(generator, isa, **given)
    world = make_world(generator, shape, [2200, 1025])
    spans = [(0, 2199, 2200), (1, 1000, 1025), (0, 1010, 1050), (0, 2047, 2049)]
    for window in (None, 1500):
        assert_attended(world, isa, world.run(isa, pools[1], spans, window), spans, window)


@pytest.mark.matrix
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, *INTEGERS])
@pytest.mark.parametrize(("heads", "kv_heads"), [(18, 18), (80, 10)])
def test_more_heads_than_are_taken_together(
    isa: str,
    generator: torch.Generator,
    pools: list[_native.Pool],
    heads: int,
    kv_heads: int,
    kv_dtype: torch.dtype,
) -> None:
    """At most 16 heads and 64 rows are; a single thread has all heads of a sequence in one task."""
    dtype = torch.float32 if kv_dtype == torch.float32 else torch.bfloat16
    world = make_world(generator, Shape(heads, kv_heads, 64, 16, dtype, kv_dtype), [1050, 20])
    spans = [(0, 1049, 1050), (1, 19, 20)]
    outs = world.run(isa, pools[0], spans, None, split=False)
    assert_attended(world, isa, outs, spans, None)
    (chunk,) = world.run(isa, pools[1], [(0, 1046, 1050)], None)
    assert_same_bits(outs[0][0], chunk[3])
    for split in (None, True):
        for out, expected in zip(world.run(isa, pools[2], spans, None, split), outs, strict=True):
            assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_scores_and_not_a_number(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], dtype: torch.dtype
) -> None:
    world = make_world(generator, Shape(4, 2, 64, 16, dtype, dtype), [150])
    world.q[0] *= 100.0
    spans = [(0, 0, 150)]
    (out,) = world.run(isa, pools[0], spans, None)
    assert_attended(world, isa, [out], spans, None)
    world.q[0][70, 3, 5] = NAN
    (poisoned,) = world.run(isa, pools[0], spans, None)
    assert bool(poisoned[70, 3].isnan().all())
    poisoned[70, 3] = out[70, 3]
    assert_same_bits(poisoned, out)


def test_strided_queries_and_outputs(
    isa: str, generator: torch.Generator, pools: list[_native.Pool]
) -> None:
    world = make_world(generator, Shape(4, 2, 64, 16, torch.bfloat16, torch.bfloat16), [40])
    (expected,) = world.run(isa, pools[0], [(0, 0, 40)], None)
    meta = AttentionMetadata(
        query_start_loc=torch.tensor([0, 40], dtype=torch.int32),
        seq_lens=torch.tensor([40], dtype=torch.int32),
        block_tables=world.tables,
        slot_mapping=torch.empty(0, dtype=torch.int64),
        num_seqs=1,
        block_size=16,
    )
    wide = torch.full((40, 8, 64), 7.0, dtype=torch.bfloat16)
    wide[:, 2:6] = world.q[0]
    room = torch.full((42, 8, 64), 7.0, dtype=torch.bfloat16)
    out = room[1:41, 2:6]
    both = torch.stack(world.cache[:2], 1)
    cache = KVCache(both[:, 0], both[:, 1])
    kernels = _native.table(isa)
    paged_attention(kernels, pools[0], wide[:, 2:6], cache, meta, AttentionRules(64**-0.5), out=out)
    assert_same_bits(out, expected)
    room[1:41, 2:6] = 7.0
    assert bool((room == 7).all())
    for bad, message in (
        ((wide[:, 2:6, ::2], cache), "q is"),
        ((wide[:, :3], cache), "q is"),
        ((wide[:, 2:6].double(), cache), "q is"),
        ((wide[:, 2:6], KVCache(cache.k, cache.v.float())), "k is"),
        ((wide[:, 2:6], KVCache(cache.k[:, :, :8], cache.v[:, :, :8])), "contiguous"),
        ((wide[:, 2:6], KVCache(cache.k.char(), cache.v.char())), "cache.k_scale is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            paged_attention(kernels, pools[0], *bad, meta, AttentionRules(1.0))
    with pytest.raises(ValueError, match="scale"):
        paged_attention(kernels, pools[0], wide[:, 2:6], cache, meta, AttentionRules(0.0))


def test_exp2(isa: str, generator: torch.Generator) -> None:
    """Within two units in the last place where the result is normal, 0 below, exact at whole
    numbers: over every 997th float of [-130, 4], and random ones near 0."""
    low = torch.arange(0, int(torch.tensor(130.0).view(torch.int32)), 997, dtype=torch.int32)
    x = torch.cat(
        [
            -low.view(torch.float32),
            4 * torch.rand(10**4, generator=generator),
            torch.arange(-130.0, 5),
        ]
    )
    y = torch.empty_like(x)
    _native.exp2(_native.table(isa), y.data_ptr(), x.data_ptr(), x.numel())
    exact = torch.exp2(x.double())
    normal = x >= -126
    error = ((y.double() - exact).abs() / exact)[normal]
    assert float(error.max()) < 2 * 2.0**-23
    assert bool((y[~normal] <= 2.0**-126).all())
    assert bool((y[~normal] >= 0).all())
    whole = normal & (x == x.round())
    assert torch.equal(y[whole].double(), exact[whole])
    special = torch.tensor([-torch.inf, torch.nan, -0.0, -1e30])
    y = torch.empty_like(special)
    _native.exp2(_native.table(isa), y.data_ptr(), special.data_ptr(), 4)
    assert y[0] == 0
    assert bool(y[1].isnan())
    assert y[2] == 1
    assert y[3] == 0
