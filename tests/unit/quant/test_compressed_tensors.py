"""compressed-tensors, against the library that writes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.naive_quantized.base import (
    FloatQuantizationCompressor,
    IntQuantizationCompressor,
)
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from torch import Tensor

from quire.core.dtypes import HostArray
from quire.quant.bits import float32
from quire.quant.registry import method
from tests.arrays import tensor
from tests.unit.quant.packers import E2M1
from tests.unit.quant.test_checkpoints import TensorWeights

N, K = 24, 96
COMPRESSORS: dict[str, Any] = {
    "pack-quantized": PackedQuantizationCompressor,
    "int-quantized": IntQuantizationCompressor,
    "float-quantized": FloatQuantizationCompressor,
    "nvfp4-pack-quantized": NVFP4PackedCompressor,
    "mxfp4-pack-quantized": MXFP4PackedCompressor,
    "mxfp8-quantized": MXFP8QuantizationCompressor,
}


def args(bits: int = 4, type_: str = "int", **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": type_, "symmetric": True, "strategy": "channel"} | more


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "int4 channel": ("pack-quantized", args()),
    "int4 group": ("pack-quantized", args(strategy="group", group_size=32)),
    "int4 zero": ("pack-quantized", args(strategy="group", group_size=32, symmetric=False)),
    "int3 group": ("pack-quantized", args(3, strategy="group", group_size=48)),
    "int5 zero": ("pack-quantized", args(5, symmetric=False)),
    "int8 w8a16": ("pack-quantized", args(8)),
    "int8 zero": ("pack-quantized", args(8, strategy="group", group_size=32, symmetric=False)),
    "int8": ("int-quantized", args(8)),
    "int4 w4a8": ("int-quantized", args(strategy="group", group_size=32, symmetric=False)),
    "int8 tensor": ("int-quantized", args(8, strategy="tensor")),
    "int8 channel zero": ("int-quantized", args(8, symmetric=False)),
    "fp8": ("float-quantized", args(8, "float")),
    "fp8 tensor": ("float-quantized", args(8, "float", strategy="tensor")),
    "fp8 group": ("float-quantized", args(8, "float", strategy="group", group_size=32)),
    "fp8 block": ("float-quantized", args(8, "float", strategy="block", block_structure=[8, 32])),
    "nvfp4": ("nvfp4-pack-quantized",
              args(4, "float", strategy="tensor_group", group_size=16)),
    "mxfp8": ("mxfp8-quantized", args(8, "float", strategy="group", group_size=32)),
    "mxfp4": ("mxfp4-pack-quantized", args(4, "float", strategy="group", group_size=32)),
}  # fmt: skip


def scale_shape(weights: dict[str, Any]) -> tuple[int, ...]:
    match weights["strategy"]:
        case "tensor":
            return (1,)
        case "channel":
            return (N, 1)
        case "block":
            rows, columns = weights["block_structure"]
            return -(-N // rows), -(-K // columns)
        case _:
            return N, K // weights["group_size"]


def written(form: str, weights: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """What the library writes of a random weight, and what it reads of that."""
    torch.manual_seed(0)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    most = {"int": (1 << (weights["num_bits"] - 1)) - 1, "float": 448 if weights["num_bits"] == 8
            else 6}[weights["type"]]  # fmt: skip
    state: dict[str, Tensor] = {"weight": torch.randn(N, K)}
    shape = scale_shape(weights)
    state["weight_scale"] = (torch.rand(shape) + 0.5) * 2 / most
    if form.startswith("mxfp"):
        state["weight_scale"] = torch.exp2(torch.randint(-4, 2, shape).float())
    if form.startswith("nvfp4"):
        state["weight_global_scale"] = torch.tensor([20.0])
        scale = state["weight_scale"] * 20
        state["weight_scale"] = scale.to(torch.float8_e4m3fn).float()
    if not weights["symmetric"]:
        state["weight_zero_point"] = torch.randint(-most - 1, most, shape, dtype=torch.int8)
    compressor = COMPRESSORS[form]
    tensors = compressor.compress(state, scheme)
    return tensors, compressor.decompress(tensors, scheme)["weight"]


def read(form: str, weights: dict[str, Any], tensors: dict[str, Tensor], **more: Any) -> Tensor:
    group = {"targets": ["Linear"], "weights": weights} | more
    how = method({
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group},
    })  # fmt: skip
    scheme = how.scheme("model.layers.0.mlp.up_proj")
    specs, stored = scheme.stored(N, K), TensorWeights(tensors)
    arrays: dict[str, HostArray] = {}
    for name, info in stored.tensors.items():
        assert info.dtype in specs[name].dtypes
        assert not specs[name].shapes or info.shape in specs[name].shapes
        values = stored.read(name)
        plain = specs[name].raw or info.dtype in ("I32", "I64", "I8")
        arrays[name] = values if plain else float32(values, info.dtype)
    assert all(spec.optional or name in tensors for name, spec in specs.items())
    return tensor(scheme.read(arrays, N, K).dequantize())


@pytest.mark.parametrize("case", CASES)
def test_what_the_library_writes(case: str) -> None:
    form, weights = CASES[case]
    tensors, expected = written(form, weights)
    got = read(form, weights, tensors)
    if form.startswith("nvfp4"):  # the library multiplies in bfloat16
        torch.testing.assert_close(got, expected.float(), rtol=2**-7, atol=0)
        packed, scale = tensors["weight_packed"], tensors["weight_scale"].float()
        codes = torch.stack([packed & 15, packed >> 4], dim=2).view(N, K).int()
        by_column = (scale / tensors["weight_global_scale"]).repeat_interleave(16, 1)
        assert torch.equal(got, torch.from_numpy(E2M1)[codes] * by_column)
    else:
        assert torch.equal(got, expected.float())


@pytest.mark.parametrize("scale", [torch.float16, torch.bfloat16])
def test_narrow_scales(scale: torch.dtype) -> None:
    """The library multiplies in the scale's type; here nothing is rounded before the product."""
    form, weights = CASES["int4 group"]
    tensors, _ = written(form, weights)
    tensors["weight_scale"] = tensors["weight_scale"].to(scale)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    expected = PackedQuantizationCompressor.decompress(tensors, scheme)["weight"]
    assert torch.equal(read(form, weights, tensors).to(scale), expected)


def test_columns_in_any_group() -> None:
    """What older versions of the library call actorder "group"."""
    form, weights = CASES["int4 zero"]
    tensors, expected = written(form, weights)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(1))
    g_idx = torch.empty(K, dtype=torch.int32)
    g_idx[order] = torch.arange(K, dtype=torch.int32) // 32
    in_groups = expected / 1.0  # groups as runs
    shuffled = torch.empty_like(in_groups)
    # Column c of the file is the one that lies at the place of c among its group's columns.
    stable = g_idx.argsort(stable=True)
    shuffled[:, stable] = in_groups
    from compressed_tensors.compressors.pack_quantized.helpers import (
        pack_to_int32,
        unpack_from_int32,
    )

    codes = unpack_from_int32(tensors["weight_packed"], 4, torch.Size([N, K]))
    moved = torch.empty_like(codes)
    moved[:, stable] = codes
    tensors["weight_packed"] = pack_to_int32(moved, 4)
    tensors["weight_g_idx"] = g_idx
    got = read(form, weights | {"actorder": "group"}, tensors)
    assert torch.equal(got, shuffled)


def test_static_activations() -> None:
    form, weights = CASES["int8"]
    tensors, _ = written(form, weights)
    tensors["input_scale"] = torch.tensor([0.5])
    how = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": how}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": group}}
    scheme = method(config).scheme("x")
    assert not scheme.form(K).float_activations
    arrays = {name: t.numpy() for name, t in tensors.items()}
    assert scheme.read(arrays, N, K).input_scale == 0.5
    arrays["input_zero_point"] = torch.tensor([3], dtype=torch.int8).numpy()
    assert scheme.read(arrays, N, K).input_scale is None
    del group["input_activations"]
    alone = method(config).scheme("x")
    assert alone.form(K).float_activations
