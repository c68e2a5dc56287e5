"""Native attention with sinks (one more score per head that has no value), and in chunks."""

from __future__ import annotations

import pytest
import torch

from quire import _native
from tests.kernels.attention_common import (
    BFLOAT16,
    PLAIN,
    SHAPES,
    Shape,
    World,
    assert_attended,
    assert_same_bits,
    emulated,
    make_world,
    pick,
    random_shape,
    with_plain,
)

ODD: dict[str, object] = {"kv_heads": 2, "heads": 6, "head_dim": 52, "block_size": 4}
"""Not for the kernels on tiles."""
GIVEN: list[dict[str, object]] = [*SHAPES[:5], *SHAPES[10:14], {**ODD, **BFLOAT16}]


def sink_world(generator: torch.Generator, shape: Shape, lens: list[int]) -> World:
    """Sinks that hardly count, that count as much as the keys, and that outweigh them."""
    world = make_world(generator, shape, lens)
    world.sinks = torch.randn(shape.heads, generator=generator) * 4.0
    return world


@with_plain
@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_sinks_join_the_softmax_in_every_batch(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    shape = random_shape(generator, isa, **given)
    print(shape)
    n = 200 if emulated(isa) else 1100
    world = sink_world(generator, shape, [1, 129, pick(generator, 2, 200), n])
    exact = shape.head_dim == ODD["head_dim"]
    for window in (None, pick(generator, 1, 200)):
        spans = [(2, 0, world.lens[2]), (3, n - 40, n), (0, 0, 1), (1, 128, 129)]
        outs = world.run(isa, pools[1], spans, window)
        assert_attended(world, isa, outs, spans, window, exact_weights=exact)
        for pool, split in ((pools[0], False), (pools[2], True)):
            (alone,) = world.run(isa, pool, [(3, n - 1, n)], window, split)
            assert_same_bits(alone[0], outs[1][39])


@pytest.mark.parametrize("given", [SHAPES[0], {**ODD, **BFLOAT16}], ids=str)
def test_sinks_of_any_size(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    """One of -inf changes no bit; a large one leaves zeros; NaN spoils its head alone."""
    shape = random_shape(generator, isa, **given)
    world = make_world(generator, shape, [40])
    spans = [(0, 30, 40)]
    (plain,) = world.run(isa, pools[0], spans, None)
    world.sinks = torch.full((shape.heads,), -torch.inf)
    world.sinks[1], world.sinks[2] = 1e30, torch.nan
    (out,) = world.run(isa, pools[0], spans, None)
    same = [0, *range(3, shape.heads)]
    assert_same_bits(out[:, same], plain[:, same])
    assert out[:, 1].abs().max() < 1e-30
    assert out[:, 2].isnan().all()
    world.sinks = torch.zeros(shape.heads + 1)
    with pytest.raises(ValueError, match=f"there are {shape.heads} heads"):
        world.run(isa, pools[0], spans, None)


@with_plain
@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_chunks(
    isa: str, generator: torch.Generator, pools: list[_native.Pool], given: dict[str, object]
) -> None:
    """A row sees the tokens of its chunk alone (Llama 4)."""
    shape = random_shape(generator, isa, **given)
    print(shape)
    n = 200 if emulated(isa) else 1100
    world = make_world(generator, shape, [1, 129, pick(generator, 2, 200), n])
    world.chunked = True
    exact = shape.head_dim == ODD["head_dim"]
    for chunk in (1, 100, 128, pick(generator, 2, 2000)):
        spans = [(2, 0, world.lens[2]), (3, n - 40, n), (0, 0, 1), (1, 128, 129)]
        outs = world.run(isa, pools[1], spans, chunk)
        assert_attended(world, isa, outs, spans, chunk, exact_weights=exact)
        for pool, split in ((pools[0], False), (pools[2], True)):
            (alone,) = world.run(isa, pool, [(3, n - 1, n)], chunk, split)
            assert_same_bits(alone[0], outs[1][39])
    if isa != PLAIN:
        with pytest.raises(ValueError, match="chunks need a size"):
            world.run(isa, pools[0], spans, None)


@with_plain
def test_what_lies_behind_the_window_is_not_read(
    isa: str, generator: torch.Generator, pools: list[_native.Pool]
) -> None:
    """Blocks there may belong to another sequence by now, and the table name others."""
    world = make_world(generator, Shape(4, 2, 64, 16, torch.float32, torch.float32), [300])
    spans = [(0, 290, 300)]
    (expected,) = world.run(isa, pools[1], spans, 20)
    behind = world.tables[0, :16].tolist()
    world.cache.k[behind], world.cache.v[behind] = torch.nan, torch.inf
    world.tables[0, :16] = -1
    assert_same_bits(world.run(isa, pools[1], spans, 20)[0], expected)
