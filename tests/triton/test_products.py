"""Products of every form of weight: against float64, and the same bits however rows are cut."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from quire.core.layers import RouteSpec
from quire.core.quantized import E2M1, QuantizedWeight
from quire.ops.torch_ops import latent, moe, reference
from quire.ops.torch_ops.arrays import array, tensor
from quire.ops.triton import linear
from quire.ops.triton.provider import TritonOps
from quire.ops.triton.rows import codes_of
from quire.ops.triton.weights import CODED_ROWS, CodedWeight, coded
from quire.quant.fp4 import Nvfp4
from quire.quant.names import NAMES

FLOAT32 = np.dtype(np.float32)
RNG = np.random.default_rng


def rows(count: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return tensor(RNG(seed).standard_normal((count, width), np.float32)).to(dtype)


def quantized(form: str, n: int, k: int, seed: int) -> QuantizedWeight:
    rng = RNG(seed)
    by_row = ("int8", "float8", "float8_a16")
    bits, group = (8, k) if form in by_row else (8, 32) if form == "codes" else (4, 32)
    shape = (n, -(-k // group))
    scale = rng.uniform(0.01, 0.02, shape).astype(np.float32)
    if form.startswith("paired"):
        scale = scale.astype(np.float16).astype(np.float32)
    if form in ("int8", "codes"):
        return QuantizedWeight(rng.integers(-127, 128, (n, k), np.int8), bits, scale, group)
    if form in ("float8", "float8_a16"):
        floats = rng.standard_normal((n, k)).astype(ml_dtypes.float8_e4m3fn)
        wide = form == "float8_a16"
        return QuantizedWeight(floats, bits, scale, group, float_activations=wide)
    codes = rng.integers(0, 1 << bits, (n, k), np.uint8)
    if form == "nvfp4":
        factor = rng.uniform(1e-4, 1e-3, n).astype(np.float32)
        small = rng.uniform(0.01, 448, shape).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        book = np.array(E2M1, np.float32)
        scale = small * factor[:, None]
        return QuantizedWeight(codes, 4, scale, 32, codebook=book, factor=factor)
    extra: dict[str, Any] = {
        "zeros": {"zero": rng.integers(0, 16, shape).astype(np.float32)},
        "paired": {"zero": rng.integers(0, 17, shape).astype(np.float32)},
        "fractions": {"zero": rng.uniform(0, 16, shape).astype(np.float32)},
        "offsets": {"offset": rng.standard_normal(shape).astype(np.float32)},
        "book": {"codebook": rng.standard_normal(1 << bits).astype(np.float32)},
        "e2m1": {"codebook": np.array(E2M1, np.float32)},
        "paired_e2m1": {"codebook": np.array(E2M1, np.float32)},
        "ordered": {"permutation": rng.permutation(k)},
    }[form]
    return QuantizedWeight(codes, bits, scale, group, **extra)


@pytest.fixture(scope="module")
def ops() -> TritonOps:
    return TritonOps()


def close(found: Tensor, x: Tensor, w: Tensor, half: float) -> bool:
    """Compare with x @ w.T in float64: x and w rounded to the dtype, sums of float32."""
    x, w = x.double(), w.double()
    exact, size = x @ w.T, x.abs() @ w.abs().T
    bound = size * (2 * half + x.shape[1] * 2.0**-24) + exact.abs() * half
    return bool(((found.double() - exact).abs() <= bound + 1e-9).all())


@pytest.mark.parametrize(
    "form",
    ["codes", "float8_a16", "zeros", "fractions", "offsets", "book", "e2m1", "nvfp4", "ordered"],
)
def test_grouped_codes(ops: TritonOps, form: str) -> None:
    whole = quantized(form, 70, 96, seed=1)
    packed = ops.pack_linear([whole.rows(0, 30), whole.rows(30, 40)])
    assert isinstance(packed, CodedWeight)
    assert packed.shape == (70, 96)
    x = rows(3, 96, seed=2)
    assert close(ops.linear(x, packed), x, tensor(whole.dequantize()), 2.0**-24)
    ids = torch.tensor([5, 0, 69])
    assert torch.equal(ops.embedding(ids, packed), tensor(whole.dequantize())[ids])


@pytest.mark.parametrize(("form", "most"), [("int8", 127), ("float8", 448)])
def test_rows_and_weights_of_8_bits(ops: TritonOps, form: Any, most: int) -> None:
    weight = quantized(form, 33, 100, seed=3)
    packed = ops.pack_linear(weight)
    assert isinstance(packed, CodedWeight)
    assert packed.form == form
    x = rows(2, 100, seed=4)
    codes, scale = codes_of(x, CODED_ROWS[form])
    # Half a step, and a little where x / scale is rounded before it; floats have 3 bits.
    step = scale[:, None] if form == "int8" else torch.maximum(x.abs() / 8, scale[:, None] / 512)
    assert ((codes.float() * scale[:, None] - x).abs() <= 0.5001 * step).all()
    assert codes.float().abs().max(1).values.tolist() == [most, most]
    wide, numbers = codes.double(), tensor(weight.codes).double()
    scales = scale.double()[:, None] * tensor(weight.scale).double().T
    exact, size = (wide @ numbers.T) * scales, (wide.abs() @ numbers.abs().T) * scales
    sums = size * 100 * 2.0**-24 if form == "float8" else 0.0
    for first, last in ((0, 2), (1, 2)):
        found = ops.linear(x[first:last], packed)
        bound = (exact.abs() * 2.0**-22 + sums)[first:last]
        assert ((found - exact[first:last]).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dense_weights_with_bias_and_epilogue(ops: TritonOps, dtype: torch.dtype) -> None:
    half = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    x, weight = rows(5, 80, 5, dtype), rows(66, 80, 6, dtype)
    bias = rows(1, 66, 7, dtype)[0]
    packed = ops.pack_linear(array(weight), array(bias))
    found = ops.linear(x, packed)
    with_ones = torch.cat((x, x.new_ones(5, 1)), 1), torch.cat((weight, bias[:, None]), 1)
    assert close(found, *with_ones, half)
    assert ops.logits(x, packed).dtype == torch.float32
    gated = ops.pack_linear(array(weight), epilogue="silu_mul")
    plain = ops.pack_linear(array(weight))
    assert torch.equal(ops.linear(x, gated), ops.activation(ops.linear(x, plain), "silu_mul"))


@pytest.mark.parametrize(
    "form", [pytest.param("dense", marks=pytest.mark.slow), "int8",
             pytest.param("zeros", marks=pytest.mark.slow)]
)  # fmt: skip
def test_segments_and_batches_change_no_bit(
    ops: TritonOps, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles, segments in one program or in several, and the other rows."""
    monkeypatch.setattr(linear, "segment", lambda columns, width: 128)
    weight = rows(20, 200, 8).numpy() if form == "dense" else quantized(form, 20, 200, seed=8)
    packed = ops.pack_linear(weight, rows(1, 20, 9).numpy()[0])
    x = rows(70, 200, seed=10)
    monkeypatch.setattr(linear, "processors", lambda device: 0)
    whole = ops.linear(x, packed)
    for first, last, programs in ((0, 1, 1000), (30, 31, 0), (30, 70, 1000)):
        monkeypatch.setattr(linear, "processors", lambda device, n=programs: n)
        assert torch.equal(ops.linear(x[first:last], packed), whole[first:last])


@pytest.mark.parametrize(
    "form", [pytest.param("dense", marks=pytest.mark.slow), "zeros",
             pytest.param("int8", marks=pytest.mark.slow)]
)  # fmt: skip
def test_experts_are_those_of_the_reference(ops: TritonOps, form: str) -> None:
    count, hidden, width = 5, 32, 24
    if form == "dense":
        first: Any = rows(count * 2 * width, hidden, 11).numpy()
        second: Any = rows(count * hidden, width, 12).numpy()
    else:
        first = quantized(form, count * 2 * width, hidden, seed=11)
        second = quantized(form, count * hidden, width, seed=12)
    given: dict[str, Any] = {"epilogue": "silu_mul", "experts": count}
    gate_up, down = ops.pack_linear(first, **given), ops.pack_linear(second, experts=count)
    plain = (
        reference.pack_linear(first, **given),
        reference.pack_linear(second, experts=count),
    )
    x = rows(9, hidden, seed=13)
    spec = RouteSpec(top_k=2, renormalize=True)
    experts, weights = ops.route(rows(9, count, seed=14), None, spec)
    for on_input in (False, True):
        expected = moe.moe(x, experts, weights, *plain, None, on_input)
        found = ops.moe(x, experts, weights, gate_up, down, None, on_input)
        # Rounding rows to 8 bits twice costs a share of the largest product.
        bound = 0.05 if form == "int8" else 1e-5
        assert (found - expected).abs().max() <= bound * expected.abs().max()
        alone = ops.moe(x[4:5], experts[4:5], weights[4:5], gate_up, down, None, on_input)
        assert torch.equal(alone, found[4:5])


def test_heads_have_their_own_products(ops: TritonOps) -> None:
    weight = rows(3 * 10, 16, 15).numpy()
    packed = ops.pack_linear(weight, experts=3)
    x = rows(4 * 3, 20, 16).view(4, 3, 20)
    expected = latent.head_linear(x, reference.pack_linear(weight, experts=3), 2)
    found = ops.head_linear(x, packed, 2)
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    assert torch.equal(ops.head_linear(x[1:2], packed, 2), found[1:2])


@pytest.mark.parametrize("form", ["int8", "float8"])
def test_a_norm_before_products_of_8_bits_quantizes_for_them(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of a kernel of its own; norms of other models do not."""
    own, ops = TritonOps(), TritonOps()
    packed = own.pack_linear(quantized(form, 40, 96, seed=3))
    ops.pack_linear(quantized(form, 40, 96, seed=4))
    x, gain = rows(3, 96, 5).half(), rows(1, 96, 6)[0].half()
    launched: list[str] = []
    run = InterpretedFunction.run

    def counted(self: Any, *args: Any, **given: Any) -> Any:
        launched.append(self.fn.__name__)
        return run(self, *args, **given)

    monkeypatch.setattr(InterpretedFunction, "run", counted)
    found = ops.linear(ops.rms_norm(x, gain, 1e-6), packed)
    assert launched == ["rms_norm", "product"]
    launched.clear()
    plain = TritonOps()
    plain.pack_linear(quantized("zeros", 40, 96, seed=3))
    assert torch.equal(plain.linear(plain.rms_norm(x, gain, 1e-6), packed), found)
    assert launched == ["rms_norm", "quantize_rows", "product"]
    launched.clear()
    normed = ops.rms_norm(x, gain, 1e-6)
    assert torch.equal(ops.linear(normed[1:], packed), found[1:])
    assert launched == ["rms_norm", "quantize_rows", "product"], "rows that were cut out"


@pytest.mark.parametrize("divides", [False, True])
def test_the_scales_of_nvfp4_are_stored_without_their_tensors(divides: bool) -> None:
    """Of checkpoints and of weights that are rounded here; if they were something else, whole."""
    rng = RNG(3)
    tensors: dict[str, Any] = {
        "weight_packed": rng.integers(0, 256, (6, 32), np.uint8),
        "weight_scale": rng.uniform(1, 448, (6, 4)).astype(ml_dtypes.float8_e4m3fn),
        "weight_global_scale": np.array([0.0123], np.float32),
    }
    rounded = NAMES["nvfp4"].layers
    assert rounded is not None
    own = rounded.quantize(rng.standard_normal((6, 64)).astype(np.float32))
    for weight in (Nvfp4(divides=divides).read(tensors, 6, 64), own):
        packed = coded([weight, weight], None, "none", 1, torch.bfloat16)
        assert packed is not None
        assert packed.factor is not None
        assert packed.scale.element_size() == 2
        weight.scale[2, 1] *= 1.001
        whole = coded([weight], None, "none", 1, torch.bfloat16)
        assert whole is not None
        assert whole.factor is None
        assert np.array_equal(array(whole.scale), weight.scale.T)
