"""A mixture of experts for every instruction set: the sum of its experts' own products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire import _native
from quire.ops import moe as plain
from quire.ops import reference
from quire.ops.native import NativeKernels
from quire.ops.native_gemm import PackedLinear, Pool, WeightKind
from quire.ops.native_moe import moe
from tests.kernels.fused_common import (
    U,
    assert_close,
    assert_same_bits,
    draw,
    each_dtype,
    each_isa,
    new_generator,
    pick,
)

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
        [reference.pack_linear(w, epilogue="silu_mul") for w in up],
        [reference.pack_linear(w) for w in down],
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
