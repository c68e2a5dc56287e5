"""Native attention of the shapes that the kernels on tiles leave out: any head size, block size and
number of query heads a kv head."""

from __future__ import annotations

import itertools

import pytest
import torch

from quire import _native
from tests.kernels.attention_common import (
    FLOAT8,
    INTEGERS,
    UNIT,
    Shape,
    World,
    assert_attended,
    assert_same_bits,
    choose,
    make_world,
    pick,
    random_spans,
)

CACHES = [
    *((dtype, False) for dtype in (*UNIT, *INTEGERS, *FLOAT8)),
    *((dtype, True) for dtype in FLOAT8),
]
ODD = [(1, 16), (12, 32), (20, 8), (100, 64), (257, 12), (80, 1), (64, 12), (None, 4), (None, 16)]
"""Head size, any if None, and block size."""


def odd_shape(
    generator: torch.Generator, size: tuple[int | None, int], cache: tuple[torch.dtype, bool]
) -> Shape:
    head_dim = size[0] or 8 * pick(generator, 0, 36) + pick(generator, 1, 7)
    if cache[0] == torch.uint8:
        head_dim += -head_dim % 8
    groups = (1, 2, 3, 5, 6) if head_dim > 128 else (1, 2, 3, 5, 16, 71)
    group = choose(generator, *groups)
    kv_heads = 1 if group > 5 else choose(generator, 1, 2, 3)
    dtype = list(UNIT)[pick(generator, 0, 2)]
    return Shape(kv_heads * group, kv_heads, head_dim, size[1], dtype, *cache)


def attend(
    world: World, isa: str, pool: _native.Pool, spans: list[tuple[int, int, int]], case: Case
) -> list[torch.Tensor]:
    window, softcap, causal = case
    return world.run(isa, pool, spans, window, softcap=softcap, causal=causal)


Case = tuple[int | None, float | None, bool]
"""Window, softcap, causal."""


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("cache", CACHES, ids=str)
@pytest.mark.parametrize("size", ODD, ids=str)
def test_any_shape(
    isa: str,
    generator: torch.Generator,
    pools: list[_native.Pool],
    size: tuple[int | None, int],
    cache: tuple[torch.dtype, bool],
) -> None:
    """Within the rounding errors of float32; and the same bits in every company."""
    shape = odd_shape(generator, size, cache)
    n = pick(generator, 129, 160)
    world = make_world(generator, shape, [n, 1, 128, pick(generator, 1, 100)])
    for case in (
        (None, None, True),
        (pick(generator, 1, 150), None, True),
        (None, 1.5, False),
        (pick(generator, 1, 150), 30.0, False),
    ):
        print(shape, case)
        spans = [(s, 0, length) for s, length in enumerate(world.lens)]
        outs = attend(world, isa, pools[1], spans, case)
        window, softcap, causal = case
        assert_attended(world, isa, outs, spans, window, softcap, causal=causal, exact_weights=True)
        if not causal:  # all of a sequence is in one step
            for span, out in zip(spans, outs, strict=True):
                assert_same_bits(attend(world, isa, pools[2], [span], case)[0], out)
            continue
        cuts = sorted({0, n, n - 1, pick(generator, 1, n - 1), pick(generator, 1, n - 1)})
        for pool, (first, last) in zip(
            itertools.cycle(pools), itertools.pairwise(cuts), strict=False
        ):
            others = [span for span in random_spans(generator, world.lens) if span[0] != 0]
            others.insert(pick(generator, 0, len(others)), (0, first, last))
            got = attend(world, isa, pool, others, case)
            assert_same_bits(got[others.index((0, first, last))], outs[0][first:last])


@pytest.mark.parametrize("kv_dtype", [torch.float32, *INTEGERS])
def test_the_block_size_changes_nothing(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], kv_dtype: torch.dtype
) -> None:
    state, results = generator.get_state(), []
    width = 264 if kv_dtype == torch.uint8 else 52
    for block_size in (1, 4, 12, 16, 64, 300):
        generator.set_state(state)
        world = make_world(
            generator, Shape(6, 2, width, block_size, torch.bfloat16, kv_dtype), [200]
        )
        results.append(world.run(isa, pools[1], [(0, 30, 200)], 140)[0])
    for other in results[1:]:
        assert_same_bits(other, results[0])


def test_many_heads_read_one(
    isa: str, generator: torch.Generator, pools: list[_native.Pool]
) -> None:
    """More of them than a tile of the other kernels has rows, in a head size that those take."""
    world = make_world(generator, Shape(128, 1, 64, 16, torch.bfloat16, torch.bfloat16), [140])
    spans = [(0, 100, 140)]
    outs = world.run(isa, pools[1], spans, None)
    assert_attended(world, isa, outs, spans, None, exact_weights=True)
    (alone,) = world.run(isa, pools[0], [(0, 139, 140)], None)
    assert_same_bits(alone[0], outs[0][39])
