"""A mixture of experts for every instruction set: the sum of its experts' own products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire import _native
from quire.core.layers import RouteSpec, Scores
from quire.ops import providers
from quire.ops.interface import Ops
from quire.ops.native import NativeKernels
from quire.ops.native_gemm import Pool, WeightKind
from quire.ops.plan import record
from quire.ops.torch_ops import moe as plain
from quire.ops.torch_ops import reference
from tests.arrays import array, tensor
from tests.kernels.fused_common import (
    U,
    assert_close,
    assert_same_bits,
    draw,
    each_dtype,
    each_isa,
    new_generator,
    new_kernels,
    pick,
)
from tests.native import PackedLinear, moe, tensor_ops

pytestmark = pytest.mark.matrix

KINDS: dict[torch.dtype, WeightKind] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
POOL = Pool(2)
Experts = tuple[list[PackedLinear], list[PackedLinear]]


def experts(
    kernels: NativeKernels,
    pool: _native.Pool,
    weights: tuple[list[Tensor], list[Tensor]],
    kind: WeightKind | None = None,
) -> Experts:
    up, down = weights
    kind = kind or KINDS[up[0].dtype]
    return (
        [PackedLinear(kernels, pool, w, kind=kind, epilogue="silu_mul", group=32) for w in up],
        [PackedLinear(kernels, pool, w, kind=kind, group=32) for w in down],
    )


def draw_weights(
    g: torch.Generator, dtype: torch.dtype, count: int, hidden: int, width: int
) -> tuple[list[Tensor], list[Tensor]]:
    up = [draw(g, dtype, 2 * width, hidden, scale=hidden**-0.5) for _ in range(count)]
    return up, [draw(g, dtype, hidden, width, scale=width**-0.5) for _ in range(count)]


def draw_choice(g: torch.Generator, rows: int, count: int, top_k: int) -> tuple[Tensor, Tensor]:
    chosen = torch.rand(rows, count, generator=g).topk(top_k)
    return chosen.indices, torch.softmax(chosen.values, -1)


@each_isa
@each_dtype
def test_it_is_the_sum_of_its_experts(isa: str, dtype: torch.dtype) -> None:
    g, kernels = new_generator(), NativeKernels(isa)
    for rows, count, hidden, width in ((1, 4, 32, 32), (7, 5, pick(g, 1, 90), pick(g, 1, 90))):
        up, down = experts(kernels, POOL, draw_weights(g, dtype, count, hidden, width))
        x = draw(g, dtype, rows, hidden)
        chosen, weights = draw_choice(g, rows, count, 3)
        y = moe(kernels, POOL, x, chosen, weights, up, down)
        exact, size = torch.zeros(2, rows, hidden, dtype=torch.float64)
        for row in range(rows):
            for index, weight in zip(chosen[row].tolist(), weights[row].tolist(), strict=True):
                between = up[index].forward(x[row : row + 1])
                part = weight * down[index].forward(between, dtype=torch.float32)[0].double()
                exact[row] += part
                size[row] += part.abs()
        assert_close(y, exact, 4 * U * size)


@pytest.mark.parametrize("kind", ["bf16", "s8", "u4"])
def test_a_rows_bits_are_its_own(kind: WeightKind) -> None:
    g, kernels = new_generator(), NativeKernels(None)
    drawn = draw_weights(g, torch.bfloat16, 6, 96, 64)
    x = draw(g, torch.bfloat16, 31, 96)
    chosen, weights = draw_choice(g, 31, 6, 2)
    results = []
    for pool in (Pool(1), POOL, Pool(3)):
        packed = experts(kernels, pool, drawn, kind)
        results.append(moe(kernels, pool, x, chosen, weights, *packed))
        for row in range(0, 31, 7):
            one = slice(row, row + 1)
            alone = moe(kernels, pool, x[one], chosen[one], weights[one], *packed)
            assert_same_bits(alone, results[0][one])
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


def test_the_reference_agrees() -> None:
    g, kernels = new_generator(), NativeKernels(None)
    up, down = draw_weights(g, torch.float32, 5, 48, 40)
    x = draw(g, torch.float32, 9, 48)
    chosen, weights = draw_choice(g, 9, 5, 2)
    native = moe(kernels, POOL, x, chosen, weights, *experts(kernels, POOL, (up, down)))
    expected = plain.moe(
        x,
        chosen,
        weights,
        reference.pack_linear(up, epilogue="silu_mul", experts=5),
        reference.pack_linear(down, experts=5),
    )
    torch.testing.assert_close(native, expected, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit() -> None:
    g, kernels = new_generator(), NativeKernels(None)
    up, down = experts(kernels, POOL, draw_weights(g, torch.float32, 2, 8, 6))
    x, (chosen, weights) = draw(g, torch.float32, 3, 8), draw_choice(g, 3, 2, 1)
    assert moe(kernels, POOL, x[:0], chosen[:0], weights[:0], up, down).shape == (0, 8)
    with pytest.raises(ValueError, match="2 experts' gate_up and 1"):
        moe(kernels, POOL, x, chosen, weights, up, down[:1])
    with pytest.raises(ValueError, match="wanted silu_mul"):
        moe(kernels, POOL, x, chosen, weights, down, down)
    with pytest.raises(ValueError, match="gate_up is"):
        moe(kernels, POOL, x[:, :7].contiguous(), chosen, weights, up, down)
    with pytest.raises(ValueError, match="weights is"):
        moe(kernels, POOL, x, chosen, weights.double(), up, down)
    with pytest.raises(ValueError, match="experts is"):
        moe(kernels, POOL, x, chosen[:2], weights, up, down)
    with pytest.raises(IndexError, match="experts 0 to 2 of 2"):
        moe(kernels, POOL, x, torch.tensor([[0], [2], [1]]), weights, up, down)


def exact_route(
    logits: Tensor, top_k: int, scores: Scores, renormalize: bool
) -> tuple[Tensor, Tensor]:
    """Experts and float64 weights, by a plain sort of (logit, index)."""
    chosen = [
        sorted(range(len(row)), key=lambda e: (-row[e], e))[:top_k] for row in logits.tolist()
    ]
    experts = torch.tensor(chosen)
    wide = logits.double()
    weights = (wide.softmax(-1) if scores == "softmax" else wide.sigmoid()).gather(1, experts)
    return experts, weights / weights.sum(-1, keepdim=True) if renormalize else weights


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_route(scores: Scores, renormalize: bool) -> None:
    """The oracle's choice, of equal logits the first; weights to a rounding of float32."""
    g = new_generator()
    for count, top_k in ((1, 1), (8, 2), (60, 4), (pick(g, 9, 300), 8)):
        logits = draw(g, torch.float32, 33, count, scale=4.0)
        spec = RouteSpec(top_k, scores, renormalize)
        expected, exact = exact_route(logits, top_k, scores, renormalize)
        results = [new_kernels(threads=threads).route(logits, None, spec) for threads in (1, 3)]
        for experts, weights in (plain.route(logits, None, spec), *results):
            assert torch.equal(experts, expected)
            # The last step rounds once; the oracle's own sums of doubles are 2^29 times as fine.
            assert bool(((weights.double() - exact).abs() <= 1.001 * U * exact).all())
        assert_same_bits(results[0][1], results[1][1])
        for row in (0, 17, 32):
            alone = new_kernels().route(logits[row : row + 1], None, spec)
            assert torch.equal(alone[0], expected[row : row + 1])
            assert_same_bits(alone[1], results[0][1][row : row + 1])


def test_a_sick_row_is_routed_alone() -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = torch.nan
    experts, weights = new_kernels().route(logits, None, RouteSpec(2))
    assert experts.tolist() == [[0, 1], [2, 0], [0, 1]]
    assert weights.isnan().tolist() == [[False] * 2, [True] * 2, [False] * 2]
    with pytest.raises(ValueError, match="top_k is 5, for 4 experts"):
        new_kernels().route(logits, None, RouteSpec(5))
    with pytest.raises(ValueError, match="logits is"):
        new_kernels().route(logits.double(), None, RouteSpec(1))


@each_dtype
def test_a_layer_of_experts_is_all_in_the_plan(dtype: torch.dtype) -> None:
    """Router and experts, as a step replays them with any rows; experts may have no row."""
    g, native = new_generator(), providers.load_ops("cpu", num_threads=2)
    ops = tensor_ops(native)
    count, hidden, width, top_k = pick(g, 5, 40), 64, 48, 3
    up, down = draw_weights(g, dtype, count, hidden, width)
    router = draw(g, dtype, count, hidden)
    gate = native.pack_linear(array(router))
    gate_up = native.pack_linear(array(torch.cat(up)), epilogue="silu_mul", experts=count)
    outs = native.pack_linear(array(torch.cat(down)), experts=count)
    spec = RouteSpec(top_k)

    def layer(table: Ops, x: Tensor) -> Tensor:
        experts, weights = table.route(table.logits(x, gate), None, spec)
        return table.add(table.moe(x, experts, weights, gate_up, outs), x)

    with torch.inference_mode():
        one = draw(g, dtype, 1, hidden)
        plan = record(native, layer, (array(one),), 64)
        assert (plan.num_ops, plan.num_segments, plan.torch_ops) == (4, 1, {})
        for rows in (1, 2, 64):
            x = draw(g, dtype, rows, hidden)
            y = tensor(plan.run((array(x),)).copy())
            assert_same_bits(y, layer(ops, x))
            for row in range(0, rows, 21):
                alone = tensor(plan.run((array(x[row : row + 1]),)))
                assert_same_bits(alone, y[row : row + 1])
            experts, _ = ops.route(ops.logits(x, gate), None, spec)
            assert_close_to_exact(y, x, router, experts, up, down)


def assert_close_to_exact(
    y: Tensor, x: Tensor, router: Tensor, experts: Tensor, up: list[Tensor], down: list[Tensor]
) -> None:
    """y within the roundings of the layer, in float64 from the same choice of experts."""
    unit = torch.finfo(x.dtype).eps
    weights = (x.double() @ router.double().T).gather(1, experts).softmax(-1)
    for row, (chosen, shares) in enumerate(zip(experts.tolist(), weights, strict=True)):
        wide = x[row].double()
        exact, size = wide.clone(), wide.abs()
        for e, share in zip(chosen, shares, strict=True):
            gate, value = (up[e].double() @ wide).chunk(2)
            between = gate.sigmoid() * gate * value
            exact += share * (down[e].double() @ between)
            size += share * (down[e].double().abs() @ between.abs())
            # What rounding of gate, value and between adds, before and behind `down`.
            sums = (up[e].double().abs() @ wide.abs()).chunk(2)
            moved = 2 * sums[0] * value.abs() + gate.abs() * sums[1]
            size += share * (down[e].double().abs() @ moved)
        assert bool(((y[row].double() - exact).abs() <= 4 * unit * size + 1e-6).all())
