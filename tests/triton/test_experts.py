"""The experts of a row and the rows of an expert: as the reference has them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.core.layers import RouteSpec
from quire.ops.torch_ops import moe as plain
from quire.ops.torch_ops.reference import DenseWeight
from quire.ops.triton import experts
from quire.ops.triton.linear import product
from tests.kernels.fused_common import U, assert_same_bits, draw, new_generator, pick
from tests.kernels.test_route import SPECS


@pytest.mark.parametrize("name", SPECS)
def test_experts_are_those_of_the_reference(name: str) -> None:
    """One row has NaN, and one is large: its scores are 0 and 1 in float32."""
    g, (count, spec, biased) = new_generator(), SPECS[name]
    logits = draw(g, torch.float32, 6, count, scale=3.0)
    logits[1] *= 9.0
    logits[2, count // 2] = torch.nan
    bias = draw(g, torch.float32, count) if biased else None
    factors = None if biased else draw(g, torch.float32, count).abs()
    found, weights = experts.route(logits, bias, spec, factors)
    expected, wanted = plain.route(logits, bias, spec, factors)
    for row in (0, 3, 4, 5):
        assert torch.equal(found[row], expected[row])
        # Both round once, and sum in float64 before it.
        assert ((weights[row] - wanted[row]).abs() <= 2.001 * U * wanted[row]).all()
    assert weights[2].isnan().any()
    for row in (1, 2):
        assert len(set(found[row].tolist())) == spec.top_k
        assert 0 <= found[row].min() <= found[row].max() < count
    alone = experts.route(logits[3:4], bias, spec, factors)
    assert torch.equal(alone[0][0], found[3])
    assert_same_bits(alone[1][0], weights[3])


def test_equal_experts_are_taken_by_number() -> None:
    logits = torch.tensor([[1.0, 2.0, -0.0, 2.0, 0.0, 1.0], [0.0] * 6])
    assert experts.route(logits, None, RouteSpec(5))[0].tolist() == [[1, 3, 0, 5, 2], [*range(5)]]
    grouped = RouteSpec(2, num_groups=3, top_groups=1, group_score="max")
    assert experts.route(logits, None, grouped)[0].tolist() == [[1, 0], [0, 1]]


def test_what_the_kernel_does_not_know_is_the_references() -> None:
    logits = draw(new_generator(), torch.float16, 3, 16)
    for given in (logits, logits.float()):
        found = experts.route(given, None, RouteSpec(2, band=0.02))
        expected = plain.route(given, None, RouteSpec(2, band=0.02))
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    with pytest.raises(ValueError, match="top_k is 17, for 16 experts"):
        experts.route(logits, None, RouteSpec(17))
    assert experts.route(logits[:0], None, RouteSpec(2))[0].shape == (0, 2)


def listed(chosen: Tensor, count: int, size: int) -> list[tuple[int, list[int]]]:
    """Return the expert and the pairs of each tile that has some."""
    found = experts.grouped(chosen, count, size)
    tiles = found.row_ids.view(-1, size)
    assert len(tiles) == len(found.tile_experts)
    assert 0 <= found.tile_experts.min() <= found.tile_experts.max() < count
    listed = [
        (int(expert), [pair for pair in tile.tolist() if pair >= 0])
        for expert, tile in zip(found.tile_experts, tiles, strict=True)
    ]
    return [(expert, pairs) for expert, pairs in listed if pairs]


@pytest.mark.parametrize(
    ("rows", "count", "top_k", "size"), [(1, 5, 2, 16), (9, 3, 2, 16), (50, 20, 1, 16)]
)
def test_each_pair_is_in_a_tile_of_its_expert(
    rows: int, count: int, top_k: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the pairs, however many are read at once."""
    g = new_generator()
    chosen = torch.stack([torch.randperm(count, generator=g)[:top_k] for _ in range(rows)])
    if pick(g, 0, 1):
        chosen[:, 0] = count - 1
    flat, expected = chosen.flatten(), []
    for expert in range(count):
        pairs = (flat == expert).nonzero()[:, 0].tolist()
        expected += [(expert, pairs[i : i + size]) for i in range(0, len(pairs), size)]
    assert listed(chosen, count, size) == expected
    monkeypatch.setattr(experts, "PAIRS", 32)
    assert listed(chosen, count, size) == expected


def test_empty_tiles_are_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host launches as many tiles as there could be: 4 of 7 have rows."""
    from triton.runtime import interpreter

    count, size, hidden = 4, 16, 32
    chosen = torch.tensor([[0]] * 40 + [[3]] * 10)
    grouping = experts.grouped(chosen, count, size)
    assert len(grouping.tile_experts) == count + 50 // size
    g = new_generator()
    weight = DenseWeight(draw(g, torch.float32, count * 64, hidden), None, "none", count)
    x = draw(g, torch.float32, 50, hidden)
    dot, dots = interpreter.InterpreterBuilder.create_dot, []

    def counted(*args: object) -> object:
        dots.append(1)
        return dot(*args)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", counted)
    found = product(x, weight, torch.float32, grouping)
    assert len(dots) == 4
    expected = torch.cat((x[:40] @ weight.weight[:64].T, x[40:] @ weight.weight[192:].T))
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
