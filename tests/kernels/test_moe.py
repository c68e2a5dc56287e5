"""A mixture of experts for every instruction set: the sum of its experts' own products."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from quire.core.dtypes import FLOAT32
from quire.core.layers import RouteSpec
from quire.core.model_config import Activation
from quire.ops import providers
from quire.ops.interface import Ops
from quire.ops.native.kernels import Kernels, Pool, available_isas, emulated_isas, native_kernels
from quire.ops.packed_file import LinearFile
from quire.ops.plans.recorder import record
from quire.ops.torch_ops import moe as plain
from quire.ops.torch_ops import reference
from quire.ops.weights import GATED, Epilogue
from tests.arrays import array, tensor
from tests.kernels.fused_common import (
    UNIT,
    U,
    assert_close,
    assert_same_bits,
    draw,
    each_dtype,
    each_isa,
    new_generator,
    pick,
)
from tests.kernels.test_quantized import FORMS, Source
from tests.native import PackedLinear, QuantizedWeight, load_ops, moe, pool_of, tensor_ops

pytestmark = pytest.mark.matrix

KINDS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
ROUNDED = ["f32", "bf16", "f16", "s8", "s8_a16", "u4", "u6"]
"""What dense weights are packed as."""


def pack(
    kernels: Kernels, weight: Tensor, kind: str, bias: Tensor | None = None,
    epilogue: str = "none", experts: int = 1,
) -> PackedLinear:  # fmt: skip
    return PackedLinear(
        kernels, pool_of(2), weight, bias, kind=kind, epilogue=epilogue, group=32, experts=experts
    )


def draw_weights(
    g: torch.Generator, dtype: torch.dtype, count: int, hidden: int, width: int, gates: int = 2
) -> tuple[Tensor, Tensor]:
    """gate_up and down of all experts, one after the other."""
    up = draw(g, dtype, count * gates * width, hidden, scale=hidden**-0.5)
    return up, draw(g, dtype, count * hidden, width, scale=width**-0.5)


def draw_choice(g: torch.Generator, rows: int, count: int, top_k: int) -> tuple[Tensor, Tensor]:
    chosen = torch.rand(rows, count, generator=g).topk(top_k)
    return chosen.indices, torch.softmax(chosen.values, -1)


def assert_sum_of_experts(
    y: Tensor, x: Tensor, chosen: Tensor, weights: Tensor,
    layers: list[tuple[PackedLinear, PackedLinear]],
) -> None:  # fmt: skip
    """y within the roundings of the weighted sum of linear layers, an expert each."""
    exact, size = torch.zeros(2, *y.shape, dtype=torch.float64)
    for row in range(len(x)):
        for index, weight in zip(chosen[row].tolist(), weights[row].tolist(), strict=True):
            up, down = layers[index]
            between = up.forward(x[row : row + 1])
            part = weight * down.forward(between, dtype=torch.float32)[0].double()
            exact[row] += part
            size[row] += part.abs()
    assert_close(y, exact, (chosen.shape[1] + 1) * U * size)


@each_isa
@each_dtype
def test_it_is_the_sum_of_its_experts(isa: str, dtype: torch.dtype) -> None:
    g, kernels = new_generator(), native_kernels(isa)
    for rows, count, hidden, width in ((1, 4, 32, 32), (7, 5, pick(g, 1, 90), pick(g, 1, 90))):
        up, down = draw_weights(g, dtype, count, hidden, width)
        kind = KINDS[dtype]
        layers = [
            (pack(kernels, u, kind, None, "silu_mul"), pack(kernels, d, kind))
            for u, d in zip(up.chunk(count), down.chunk(count), strict=True)
        ]
        x = draw(g, dtype, rows, hidden)
        chosen, weights = draw_choice(g, rows, count, 3)
        gate_up = pack(kernels, up, kind, None, "silu_mul", count)
        y = moe(
            kernels,
            pool_of(2),
            x,
            chosen,
            weights,
            gate_up,
            pack(kernels, down, kind, None, "none", count),
        )
        assert_sum_of_experts(y, x, chosen, weights, layers)


def draw_float8(g: torch.Generator, n: int, k: int, group: int) -> QuantizedWeight:
    codes = draw(g, torch.float32, n, k).to(torch.float8_e4m3fn)
    scale = draw(g, torch.float32, n, -(-k // group)) / 10
    return QuantizedWeight(codes, 8, scale, group)


def rows_of(weight: QuantizedWeight, rows: slice) -> QuantizedWeight:
    parts = {
        name: value[rows]
        for name in ("codes", "scale", "zero", "offset")
        if (value := getattr(weight, name)) is not None
    }
    return replace(weight, **parts)


@pytest.mark.parametrize("form", [*ROUNDED, *FORMS, "float8", "float8 in groups"])
def test_an_expert_is_a_layer_of_its_own(form: str) -> None:
    """To the bit, for all forms of weights, with biases, whatever rows the others get."""
    g, count, rows = new_generator(), 5, 40
    hidden, width = 32 * pick(g, 1, 4), pick(g, 17, 90)
    ops, kernels = load_ops("cpu", num_threads=2), native_kernels(None)

    def layer(n: int, k: int, epilogue: Epilogue) -> tuple[PackedLinear, list[PackedLinear]]:
        biases = draw(g, torch.float32, count, n)
        bias = biases.flatten()
        if form in ROUNDED:
            weight = draw(g, torch.float32, count * n, k, scale=k**-0.5)
            each = zip(weight.chunk(count), biases, strict=True)
            return (
                pack(kernels, weight, form, bias, epilogue, count),
                [pack(kernels, w, form, b, epilogue) for w, b in each],
            )
        if form in FORMS:
            whole = Source(g).draw(form, count * n, k)
        else:
            whole = draw_float8(g, count * n, k, 32 if form.endswith("groups") else k)
        parts = [rows_of(whole, slice(e * n, (e + 1) * n)) for e in range(count)]
        return (
            ops.pack_linear(whole, bias, epilogue=epilogue, experts=count),
            [ops.pack_linear(w, b, epilogue=epilogue) for w, b in zip(parts, biases, strict=True)],
        )

    gate_up, ups = layer(2 * width, hidden, "silu_mul")
    down, downs = layer(hidden, width, "none")
    x = draw(g, torch.bfloat16, rows, hidden)
    chosen, one = torch.randint(count, (rows, 1), generator=g), torch.ones(rows, 1)
    for some in (torch.arange(rows), torch.randperm(rows, generator=g)[:13], torch.tensor([7])):
        y = moe(kernels, pool_of(2), x[some], chosen[some], one[some], gate_up, down, FLOAT32)
        for i, row in enumerate(some.tolist()):
            e = int(chosen[row])
            between = ups[e].forward(x[row : row + 1])
            assert_same_bits(y[i : i + 1], downs[e].forward(between, dtype=torch.float32))


@pytest.mark.parametrize("isa", available_isas() + emulated_isas()[:1])
@pytest.mark.parametrize("kind", ROUNDED)
def test_a_rows_bits_are_its_own(isa: str, kind: str) -> None:
    """In random batches, on any number of threads."""
    g, kernels, count, rows = new_generator(), native_kernels(isa), 6, 70
    up, down = draw_weights(g, torch.bfloat16, count, 96, 64)
    gate_up = pack(kernels, up, kind, None, "silu_mul", count)
    out = pack(kernels, down, kind, None, "none", count)
    x = draw(g, torch.bfloat16, rows, 96)
    chosen, weights = draw_choice(g, rows, count, 2)
    chosen[:40, 0] = 3  # many rows: other kernels than for few. Some rows choose it twice.
    whole = moe(kernels, pool_of(2), x, chosen, weights, gate_up, out)
    for pool in map(pool_of, (1, 2, 3)):
        for size in (1, pick(g, 2, 8), pick(g, 9, 69)):
            some = torch.randperm(rows, generator=g)[:size]
            y = moe(kernels, pool, x[some], chosen[some], weights[some], gate_up, out)
            assert_same_bits(y, whole[some])


@each_dtype
@pytest.mark.parametrize("epilogue", get_args(Activation))
def test_activations_and_biases(dtype: torch.dtype, epilogue: Activation) -> None:
    """As the reference's, with weights on results or on inputs, gated or not."""
    g, kernels, count, hidden, width = new_generator(), native_kernels(None), 5, 48, 40
    gates = 2 if epilogue in GATED else 1
    up, down = draw_weights(g, dtype, count, hidden, width, gates)
    biases = draw(g, dtype, len(up)), draw(g, dtype, len(down))
    x, kind = draw(g, dtype, 9, hidden), KINDS[dtype]
    chosen, weights = draw_choice(g, 9, count, 2)
    gate_up = pack(kernels, up, kind, biases[0], epilogue, count)
    out = pack(kernels, down, kind, biases[1], "none", count)
    wide = [
        reference.pack_linear(up.float(), biases[0].float(), epilogue=epilogue, experts=count),
        reference.pack_linear(down.float(), biases[1].float(), experts=count),
    ]
    for on_input in (False, True):
        y = moe(kernels, pool_of(2), x, chosen, weights, gate_up, out, None, on_input)
        expected = plain.moe(x.float(), chosen, weights, *wide, None, on_input)
        # Three roundings to the dtype on the way, of numbers of this size: weights of a row sum
        # up to 1 · width^-½, so that errors of `between` average out.
        size = expected.abs().max() + 4.0
        assert float((y.float() - expected).abs().max()) <= 4 * float(UNIT[dtype] * size) + 1e-5


def test_one_expert_reads_a_linear_layer() -> None:
    g, kernels = new_generator(), native_kernels(None)
    up, down = draw_weights(g, torch.float32, 1, 48, 40)
    x, chosen = draw(g, torch.float32, 9, 48), torch.zeros(9, 1, dtype=torch.int64)
    layers = pack(kernels, up, "f32", None, "silu_mul"), pack(kernels, down, "f32")
    y = moe(kernels, pool_of(2), x, chosen, torch.ones(9, 1), *layers)
    assert_same_bits(y, layers[1].forward(layers[0].forward(x)))


@pytest.mark.parametrize("kind", ["f32", "bf16", "s8", "u4"])
def test_threads_meet_four_times_at_most(kind: str) -> None:
    """Twice for one row: what precedes and follows the products runs on the caller."""
    g, kernels, pool, count = new_generator(), native_kernels(None), Pool(2), 16
    up, down = draw_weights(g, torch.bfloat16, count, 256, 128)
    layers = (
        pack(kernels, up, kind, None, "silu_mul", count),
        pack(kernels, down, kind, None, "none", count),
    )
    for rows, most in ((1, 2), (8, 4), (200, 4)):
        x = draw(g, torch.bfloat16, rows, 256)
        chosen, weights = draw_choice(g, rows, count, 8)
        before = pool.regions
        moe(kernels, pool, x, chosen, weights, *layers)
        assert 2 <= pool.regions - before <= most


def test_it_reads_chosen_experts_alone(tmp_path: Path) -> None:
    """Of weights in a mapped file, the pages of other experts stay untouched."""
    g, kernels, count, hidden, width = new_generator(), native_kernels(None), 12, 512, 1024
    up, down = draw_weights(g, torch.bfloat16, count, hidden, width)
    layers = (
        pack(kernels, up, "bf16", None, "silu_mul", count),
        pack(kernels, down, "bf16", None, "none", count),
    )
    file = LinearFile(tmp_path, 1)
    for layer in layers:
        file.move(layer.target.stored)
    chosen = torch.tensor([[7, 3]]).repeat(3, 1)
    before = mapped_kib()
    moe(kernels, pool_of(2), draw(g, torch.bfloat16, 3, hidden), chosen, torch.ones(3, 2), *layers)
    read = (mapped_kib() - before) << 10
    file.close()
    each = sum(layer.nbytes for layer in layers) // count
    around = 2 * 4 * (2 << 20)  # at most a huge page is mapped around what is touched, twice
    assert 2 * each * 0.9 <= read <= 2 * each + around


def mapped_kib() -> int:
    """Resident pages of files that have no name."""
    total, deleted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first:
            deleted = line.endswith("(deleted)")
        elif deleted and first == "Rss:":
            total += int(line.split()[1])
    return total


def test_what_does_not_fit() -> None:
    g, kernels = new_generator(), native_kernels(None)
    up, down = draw_weights(g, torch.float32, 2, 8, 6)
    gate_up = pack(kernels, up, "f32", None, "silu_mul", 2)
    out = pack(kernels, down, "f32", None, "none", 2)
    x, (chosen, weights) = draw(g, torch.float32, 3, 8), draw_choice(g, 3, 2, 1)
    assert moe(kernels, pool_of(2), x[:0], chosen[:0], weights[:0], gate_up, out).shape == (0, 8)
    one = pack(kernels, down, "f32")
    for layers in ((gate_up, one), (out, out), (gate_up, gate_up)):
        with pytest.raises(ValueError, match=r"gate_up is . x .* down is . x"):
            moe(kernels, pool_of(2), x, chosen, weights, *layers)
    with pytest.raises(ValueError, match=r"gate_up is 2 x \[12, 8\]"):
        moe(kernels, pool_of(2), x[:, :7].contiguous(), chosen, weights, gate_up, out)
    with pytest.raises(ValueError, match="weights is"):
        moe(kernels, pool_of(2), x, chosen, weights.double(), gate_up, out)
    with pytest.raises(ValueError, match="experts is"):
        moe(kernels, pool_of(2), x, chosen[:2], weights, gate_up, out)
    with pytest.raises(IndexError, match="experts 0 to 2 of 2"):
        moe(kernels, pool_of(2), x, torch.tensor([[0], [2], [1]]), weights, gate_up, out)
    with pytest.raises(ValueError, match="no weight of a linear layer"):
        gate_up.forward(x)
    with pytest.raises(ValueError, match="16 rows are not those of 3 experts"):
        pack(kernels, down, "f32", None, "none", 3)


@each_dtype
def test_a_layer_of_experts_is_all_in_the_plan(dtype: torch.dtype) -> None:
    """Router and experts, as a step replays them with any rows; experts may have no row."""
    g, native = new_generator(), providers.load_ops("cpu", num_threads=2)
    ops = tensor_ops(native)
    count, hidden, width, top_k = pick(g, 5, 40), 64, 48, 3
    up, down = draw_weights(g, dtype, count, hidden, width)
    gate = native.pack_linear(array(draw(g, dtype, count, hidden)))
    bias = array(draw(g, torch.float32, count))
    gate_up = native.pack_linear(array(up), epilogue="silu_mul", experts=count)
    out = native.pack_linear(array(down), experts=count)
    spec = RouteSpec(top_k, "sigmoid")

    def layer(table: Ops, x: Tensor) -> Tensor:
        experts, weights = table.route(table.logits(x, gate), bias, spec)
        return table.add(table.moe(x, experts, weights, gate_up, out), x)

    with torch.inference_mode():
        one = draw(g, dtype, 1, hidden)
        plan = record(native, layer, (array(one),), 64)
        assert plan.num_ops == 4
        for rows in (1, 2, 64):
            x = draw(g, dtype, rows, hidden)
            y = tensor(plan.run((array(x),)).copy())
            experts, weights = ops.route(ops.logits(x, gate), tensor(bias), spec)
            expected = ops.add(ops.moe(x, experts, weights, gate_up, out), x)
            assert_same_bits(y, expected)
            for row in range(0, rows, 21):
                alone = tensor(plan.run((array(x[row : row + 1]),)))
                assert_same_bits(alone, y[row : row + 1])
