"""Attention has the same bits alone and beside others, in chunks, on threads and in any blocks."""

import itertools

import pytest
import torch

from quire import _native
from tests.kernels.attention_common import (
    INTEGERS,
    LONG_SHAPES,
    SHAPES,
    Shape,
    assert_attended,
    assert_same_bits,
    emulated,
    make_world,
    pick,
    random_shape,
    random_spans,
    slow,
    with_plain,
)


@with_plain
@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("given", SHAPES, ids=str)
def test_a_token_is_the_same_in_every_batch_and_chunking(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    shape = random_shape(generator, isa, **given)
    print(shape)
    n = pick(generator, 140, 330)
    world = make_world(generator, shape, [n, *(pick(generator, 1, 200) for _ in range(3))])
    for window in (None, pick(generator, 1, 180)):
        (whole,) = world.run(isa, pools[0], [(0, 0, n)], window)
        for pool in pools[1:2] if slow(isa) else pools:
            cuts = sorted({0, n, *(pick(generator, 0, n) for _ in range(5))})
            for first, last in itertools.pairwise(cuts):
                others = [span for span in random_spans(generator, world.lens) if span[0] != 0]
                others.insert(pick(generator, 0, len(others)), (0, first, last))
                outs = world.run(isa, pool, others, window)
                assert_same_bits(outs[others.index((0, first, last))], whole[first:last])
        for position in (0, 1, 127, 128, n - 1, pick(generator, 0, n - 1)):
            (alone,) = world.run(isa, pools[0], [(0, position, position + 1)], window)
            assert_same_bits(alone[0], whole[position])


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("given", LONG_SHAPES, ids=str)
def test_a_token_is_the_same_alone_in_a_long_context(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    first = 1990 if emulated(isa) else 990
    positions = [1023, 1024, 1025, 2047, 2048, 2099, pick(generator, first, 2099)]
    world = make_world(generator, random_shape(generator, isa, **given), [2100])
    for window in (None, 1030):
        (whole,) = world.run(isa, pools[1], [(0, first, 2100)], window)
        for position in filter(lambda at: at >= first, positions):
            (alone,) = world.run(isa, pools[1], [(0, position, position + 1)], window)
            assert_same_bits(alone[0], whole[position - first])


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("given", SHAPES[:16], ids=str)
def test_threads_that_share_a_sequence_change_nothing(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    shape = random_shape(generator, isa, **given)
    print(shape)
    n, most = (1100, 1300) if slow(isa) else (2048, 2300)
    lens = [pick(generator, 1025, most), pick(generator, 1, most // 2), 1024, n]
    world = make_world(generator, shape, lens)
    spans = [
        (0, lens[0] - 1, lens[0]),
        (1, max(lens[1] - 40, 0), lens[1]),
        (2, 1023, 1024),
        (3, 1000, 1030),
        (3, n - 1, n),
    ]
    spans = [spans[i] for i in torch.randperm(len(spans), generator=generator).tolist()]
    for window in (None, pick(generator, 1, 2000)):
        whole = world.run(isa, pools[0], spans, window, split=False)
        if window is None:
            assert_attended(world, isa, whole, spans, window)
        ways = list(itertools.product((*pools, _native.Pool(9)), (None, True)))
        for pool, split in ways[:: 5 if slow(isa) or window else 3]:
            for out, expected in zip(
                world.run(isa, pool, spans, window, split), whole, strict=True
            ):
                assert_same_bits(out, expected)
        (alone,) = world.run(isa, pools[2], [(3, n - 1, n)], window)
        assert_same_bits(alone, whole[spans.index((3, n - 1, n))])


def test_more_parts_than_there_is_room_for(
    isa: str, generator: torch.Generator, pools: list[_native.Pool]
) -> None:
    """Some tiles stay whole: there are at most 512 parts a thread."""
    world = make_world(generator, Shape(4, 4, 32, 32, torch.bfloat16, torch.int8), [1030] * 3)
    spans = [(i % 3, 1029, 1030) for i in range(70)]
    whole = world.run(isa, pools[0], spans, None, split=False)
    for out, expected in zip(world.run(isa, pools[0], spans, None, split=True), whole, strict=True):
        assert_same_bits(out, expected)


@pytest.mark.parametrize("group", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.int8])
def test_few_rows_of_a_head_are_the_same_as_many(
    isa: str,
    generator: torch.Generator,
    pools: list[_native.Pool],
    kv_dtype: torch.dtype,
    group: int,
) -> None:
    """Few rows fill a vector in other ways. Sums in another order change few results, so there are
    many."""
    n, first = (150, 140) if slow(isa) else (400, 200)
    shape = Shape(16 * group, 16, 128, 16, torch.bfloat16, kv_dtype)
    world = make_world(generator, shape, [n])
    (whole,) = world.run(isa, pools[0], [(0, first, n)], None)
    for rows in (1, 2, 5):
        for at in range(first, n - rows, 1 if rows == 1 else 7):
            (few,) = world.run(isa, pools[0], [(0, at, at + rows)], None)
            assert_same_bits(few, whole[at - first : at - first + rows])


@with_plain
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, *INTEGERS])
def test_the_block_size_changes_nothing(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], kv_dtype: torch.dtype
) -> None:
    state, results = generator.get_state(), []
    for block_size in (8, 16, 32):
        shape = Shape(4, 2, 64, block_size, torch.bfloat16, kv_dtype)
        generator.set_state(state)
        world = make_world(generator, shape, [200])
        results.append(world.run(isa, pools[0], [(0, 30, 200)], None)[0])
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, *INTEGERS])
def test_a_token_is_the_same_in_large_and_small_tiles(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], kv_dtype: torch.dtype
) -> None:
    """On AMX one thread takes 256 rows of a head at a time here, and three take 64."""
    n = 300
    shape = Shape(8, 4, 64, 16, torch.bfloat16, kv_dtype)
    world = make_world(generator, shape, [n])
    for window, causal in ((None, True), (40, True), (40, False), (None, False)):
        spans = [(0, pick(generator, 0, 40), n)]
        large = world.run(isa, pools[0], spans, window, causal=causal)
        assert_attended(world, isa, large, spans, window, causal=causal)
        small = world.run(isa, pools[2], spans, window, causal=causal)
        assert_same_bits(small[0], large[0])
