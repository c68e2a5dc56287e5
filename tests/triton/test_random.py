"""Kernels at random shapes: within bounds of float64, and the same bits however rows are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.core.quantized import E2M1, QuantizedWeight
from quire.ops.metadata import AttentionMetadata, AttentionRules
from quire.ops.torch_ops.arrays import array, tensor
from quire.ops.triton import attention, linear
from quire.ops.triton.provider import TritonOps
from quire.ops.weights import Epilogue
from tests.examples import examples
from tests.kernels.attention_common import UNIT, Shape, World, assert_attended, make_world
from tests.triton.test_products import close

OPS = TritonOps()
FLOATS = st.sampled_from([torch.float32, torch.float16])


def few(many: int) -> Callable[[Any], Any]:
    """Return settings for `many` examples in `make test-all`; the interpreter is slow to shrink."""
    return settings(
        deadline=None, max_examples=examples(many), phases=[Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    dtype = draw(FLOATS)
    kind = draw(st.sampled_from(["own", "int8", "int4", "unit", "scaled", "float32"]))
    group, kv_heads = draw(st.sampled_from([1, 2, 3, 5, 8])), draw(st.integers(1, 2))
    kv_dtype = {
        "own": dtype, "int8": torch.int8, "int4": torch.uint8, "unit": torch.float8_e4m3fn,
        "scaled": draw(st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2])),
        "float32": torch.float32,
    }[kind]  # fmt: skip
    width = draw(st.sampled_from([16, 24, 40, 64, 72, 128, 256]))
    block = draw(st.sampled_from([8, 16, 32]))
    return Shape(group * kv_heads, kv_heads, width, block, dtype, kv_dtype, kind == "scaled")


@few(16)
@given(
    shape=shapes(),
    lens=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4)), min_size=1, max_size=2),
    window=st.none() | st.integers(1, 40),
    chunked=st.booleans(),
    softcap=st.none() | st.sampled_from([0.5, 30.0]),
    sinks=st.booleans(),
    causal=st.sampled_from([True, True, False]),
    sizes=st.sampled_from([(16, 32), (32, 32), (64, 512)]),
    seed=st.integers(0, 2**31),
)
def test_attention(
    shape: Shape, lens: list[tuple[int, int]], window: int | None, chunked: bool,
    softcap: float | None, sinks: bool, causal: bool, sizes: tuple[int, int], seed: int,
) -> None:  # fmt: skip
    """All rules at once, over every cache; all else in the memory is NaN."""
    g = torch.Generator().manual_seed(seed)
    lens = [(before if causal else 0, new) for before, new in lens]
    world = make_world(g, shape, [before + new for before, new in lens])
    world.chunked = chunked and causal and window is not None
    world.sinks = torch.randn(shape.heads, generator=g) if sinks else None
    spans = [(i, before, before + new) for i, (before, new) in enumerate(lens)]

    def run(some: list[tuple[int, int, int]], programs: int) -> list[Tensor]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in zip(("KEYS", "SEGMENT"), sizes, strict=True):
                patch.setattr(attention, name, value)
            patch.setattr(attention, "processors", lambda device: programs)
            return attended(world, some, window, softcap, causal=causal)

    whole = run(spans, 0)
    kept = shape.dtype if shape.kv_dtype == shape.dtype or shape.kv_dtype.itemsize == 1 else None
    assert_attended(
        world, "", whole, spans, window, softcap, causal=causal, exact_weights=True,
        kept=kept or torch.float32,
    )  # fmt: skip
    for number, (sequence, first, last) in enumerate(spans):
        begin = (first + last) // 2 if causal else first
        (found,) = run([(sequence, begin, last)], 1000)
        assert torch.equal(found, whole[number][begin - first :])


def attended(
    world: World, spans: list[tuple[int, int, int]], window: int | None, softcap: float | None,
    *, causal: bool,
) -> list[Tensor]:  # fmt: skip
    """Return the attention of each (sequence, first token, last token)."""
    rows = [last - first for _, first, last in spans]
    meta = AttentionMetadata(
        query_start_loc=np.cumsum([0, *rows]).astype(np.int32),
        seq_lens=np.array([last for _, _, last in spans], np.int32),
        block_tables=world.tables[[s for s, _, _ in spans]].contiguous(),
        slot_mapping=torch.empty(0, dtype=torch.int64),
        num_seqs=len(spans),
        block_size=world.shape.block_size,
    )
    q = torch.cat([world.q[s][first:last] for s, first, last in spans])
    scale = world.shape.head_dim**-0.5
    rules = AttentionRules(scale, window, softcap, causal, world.sinks, world.chunked)
    return list(attention.paged_attention(q, world.cache, meta, rules).split(rows))


@st.composite
def weights(draw: st.DrawFn, n: int, k: int) -> QuantizedWeight:
    """Codes of 2 to 8 bits in groups of any size, with what may come with them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    bits = draw(st.integers(2, 8))
    group = draw(st.sampled_from([16, 32, 48, 64, 128, 256, k]))
    shape = n, -(-k // group)
    scale = rng.uniform(0.01, 0.02, shape).astype(np.float32)
    if draw(st.booleans()):
        scale = scale.astype(np.float16).astype(np.float32)
    if bits == 8 and draw(st.booleans()):
        return QuantizedWeight(
            rng.integers(-127, 128, (n, k), np.int8), 8, scale, group, float_activations=True
        )
    extra: dict[str, Any] = {
        "plain": {},
        "zeros": {"zero": rng.integers(0, 1 << bits, shape).astype(np.float32)},
        "fractions": {"zero": rng.uniform(0, 1 << bits, shape).astype(np.float32)},
        "offsets": {"offset": rng.standard_normal(shape).astype(np.float32)},
        "book": {"codebook": rng.standard_normal(1 << bits).astype(np.float32)},
        "e2m1": {"codebook": np.array(E2M1, np.float32)},
    }[draw(st.sampled_from(["plain", "zeros", "fractions", "offsets", "book", "e2m1"]))]
    if "codebook" in extra:
        bits = int(np.log2(len(extra["codebook"])))
    if draw(st.booleans()):
        extra["permutation"] = rng.permutation(k)
    codes = rng.integers(0, 1 << bits, (n, k), np.uint8)
    return QuantizedWeight(codes, bits, scale, group, **extra)


@few(24)
@given(data=st.data())
def test_products(data: st.DataObject) -> None:
    """Every form, ragged groups and columns, biases, segments apart, and dequantized before."""
    n, k = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 300))
    count = data.draw(st.sampled_from([1, 2, 3, 15, 16, 17, 40, 65]))
    dtype, biased = data.draw(FLOATS), data.draw(st.booleans())
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    x = torch.randn(count, k, generator=g).to(dtype)
    bias = torch.randn(n, generator=g).to(dtype) if biased else None
    if data.draw(st.booleans()):
        numbers = torch.randn(n, k, generator=g).to(dtype)
        given_weight: Any = array(numbers)
    else:
        given_weight = data.draw(weights(n, k))
        numbers = tensor(given_weight.dequantize()).to(dtype)
    packed = OPS.pack_linear(given_weight, None if bias is None else array(bias))
    one = x.new_ones(count, 1)
    with_bias = (x, numbers) if bias is None else (
        torch.cat((x, one), 1), torch.cat((numbers, bias[:, None]), 1)
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "LEAST_SEGMENT", 128)
        patch.setattr(linear, "processors", lambda device: 0)
        whole = OPS.linear(x, packed)
        assert close(whole, *with_bias, UNIT[dtype])
        logits = OPS.logits(x, packed)
        assert torch.equal(logits.to(dtype), whole)
        patch.setattr(linear, "processors", lambda device: 1000)
        first = data.draw(st.integers(0, count - 1))
        last = data.draw(st.integers(first + 1, count))
        assert torch.equal(OPS.linear(x[first:last], packed), whole[first:last])
        # The interpreter rounds a sum after each step of k, of which dense weights take others.
        patch.setattr(linear, "DECODED_ROWS", 1)
        assert close(OPS.linear(x, packed), *with_bias, UNIT[dtype])


@few(12)
@given(data=st.data())
def test_experts(data: st.DataObject) -> None:
    """A token's bits are those of its experts' own products, alone and in a batch."""
    count, top_k = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    top_k = min(top_k, count)
    rows, hidden = data.draw(st.integers(1, 20)), data.draw(st.sampled_from([16, 40, 64]))
    width = data.draw(st.sampled_from([8, 24, 33]))
    kind: Epilogue = data.draw(st.sampled_from(["silu_mul", "swigluoai_mul", "relu2", "gelu"]))
    made = 2 * width if kind.endswith("_mul") else width
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    if data.draw(st.booleans()):
        first: Any = array(torch.randn(count * made, hidden, generator=g))
        second: Any = array(torch.randn(count * hidden, width, generator=g))
    else:
        first = data.draw(weights(count * made, hidden))
        second = data.draw(weights(count * hidden, width))
    x = torch.randn(rows, hidden, generator=g)
    bias = torch.randn(count * made, generator=g) if data.draw(st.booleans()) else None
    packed = [
        OPS.pack_linear(first, None if bias is None else array(bias), epilogue=kind, experts=count),
        OPS.pack_linear(second, experts=count),
    ]
    experts = torch.rand(rows, count, generator=g).argsort(1)[:, :top_k]
    shares, on_input = torch.rand(rows, top_k, generator=g), data.draw(st.booleans())
    found = OPS.moe(x, experts, shares, *packed, None, on_input)
    row = data.draw(st.integers(0, rows - 1))
    some = slice(row, row + 1)
    alone = OPS.moe(x[some], experts[some], shares[some], *packed, None, on_input)
    assert torch.equal(alone[0], found[row]), (alone[0] - found[row]).abs().max()
    total = torch.zeros(hidden)
    for expert, share in zip(experts[row].tolist(), shares[row], strict=True):
        own_bias = None if bias is None else array(bias[expert * made :][:made].clone())
        up = OPS.pack_linear(part(first, expert, made), own_bias, epilogue=kind)
        down = OPS.pack_linear(part(second, expert, hidden))
        inputs = x[some] * share if on_input else x[some]
        one = OPS.logits(OPS.linear(inputs, up), down)[0]
        total += one if on_input else share * one
    assert torch.equal(total, found[row])


def part(weight: Any, number: int, rows: int) -> Any:
    """Return an expert's rows of a weight."""
    if isinstance(weight, QuantizedWeight):
        return weight.rows(number * rows, rows)
    return weight[number * rows :][:rows].copy()
