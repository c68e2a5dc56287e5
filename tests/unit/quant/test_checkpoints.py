"""Checkpoints of every method, written by loops of the tests' own, against what is loaded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.checkpoint.tensor_info import TensorInfo
from quire.checkpoint.weights import Weights
from quire.core.dtypes import FLOAT32
from quire.core.errors import CheckpointError
from quire.core.model_config import ModelConfig
from quire.core.quantized import QuantizedWeight
from quire.models.forms import stored_forms
from quire.models.layout import parameters
from quire.models.registry import architecture, model_config
from quire.models.weights.sources import match
from quire.models.weights.stored import StoredParameters
from quire.quant.fp4 import Mxfp4
from quire.quant.fp8 import Fp8
from quire.quant.registry import method
from tests.arrays import array
from tests.unit.quant import packers
from tests.unit.quant.packers import Packer
from tests.unit.quant.test_methods import E4M3, MXFP4, QUARK, quark

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
DTYPES = {
    torch.int32: "I32", torch.int64: "I64", torch.int8: "I8", torch.uint8: "U8",
    torch.float16: "F16", torch.float32: "F32", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


class TensorWeights(Weights):
    """Tensors in memory, as a safetensors file hands them over."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.aliases = {}
        self._tensors = tensors
        self.tensors = {
            name: TensorInfo(name, DTYPES[t.dtype], tuple(t.shape), t.nbytes, Path("memory"))
            for name, t in tensors.items()
        }

    def read(self, name: str) -> Any:
        return array(self._tensors[name])

    def release(self, name: str) -> None:
        pass


def checkpoint(
    model: ModelConfig, pack: Packer, *, head: bool = False
) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """Tensors of a model whose layers `pack` wrote, and the float32 weights that they mean."""
    draw, names = np.random.default_rng(0), architecture(model.architecture).names
    tensors: dict[str, torch.Tensor] = {}
    dense: dict[str, np.ndarray] = {}
    for parameter in parameters(model):
        sources = names.sources(parameter.name)
        parts = parameter.parts if len(sources) > 1 else (parameter.shape[0],)
        for source, rows in zip(sources, parts, strict=True):
            layer = source.removesuffix(".weight")
            if parameter.kind == "linear" and (head or layer != "lm_head"):
                made = pack(draw, rows, parameter.shape[1])
                tensors |= {f"{layer}.{suffix}": t for suffix, t in made.tensors.items()}
                dense[source] = made.weight
            else:
                values = draw.standard_normal((rows, *parameter.shape[1:])).astype(np.float32)
                tensors[source], dense[source] = torch.from_numpy(values), values
    return tensors, dense


GPTQ: dict[str, Any] = {
    "quant_method": "gptq", "method": "gptq", "bits": 4, "group_size": 32, "sym": False,
}  # fmt: skip
AWQ: dict[str, Any] = {
    "quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
}  # fmt: skip
FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BNB: dict[str, Any] = {
    "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True, "_load_in_4bit": True, "llm_int8_skip_modules": ["lm_head"],
    "llm_int8_threshold": 6.0,
}  # fmt: skip

CASES: dict[str, tuple[dict[str, Any], Packer]] = {
    "gptq": (GPTQ, packers.gptq),
    "gptq-2": (GPTQ | {"bits": 2}, partial(packers.gptq, bits=2)),
    "gptq-3": (GPTQ | {"bits": 3}, partial(packers.gptq, bits=3)),
    "gptq-8": (GPTQ | {"bits": 8}, partial(packers.gptq, bits=8)),
    "gptq-8-sym": (GPTQ | {"bits": 8, "sym": True}, partial(packers.gptq, bits=8, symmetric=True)),
    "gptq-sym": (GPTQ | {"sym": True}, partial(packers.gptq, symmetric=True)),
    "gptq-row": (GPTQ | {"group_size": -1}, partial(packers.gptq, group=-1)),
    "gptq-64": (GPTQ | {"group_size": 64}, partial(packers.gptq, group=64)),
    "gptq-128": (GPTQ | {"group_size": 128}, partial(packers.gptq, group=128)),
    "gptq-v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, partial(packers.gptq, v2=True)),
    "gptq-act-order": (GPTQ | {"desc_act": True}, partial(packers.gptq, act_order=True)),
    "awq": (AWQ, packers.awq),
    "awq-row": (AWQ | {"group_size": -1}, partial(packers.awq, group=-1)),
    "fp8": (FP8, packers.fp8),
    "fp8-row": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
                partial(packers.fp8, per_row=True)),
    "fp8-e5m2": (FP8 | {"fmt": "e5m2"}, partial(packers.fp8, dtype=torch.float8_e5m2)),
    "fp8-inv": (FP8 | {"activation_scheme": "static"}, partial(packers.fp8, inverse=True)),
    "fp8-block": (FP8 | {"weight_block_size": [48, 40]}, partial(packers.fp8, block=(48, 40))),
    "fp8-quark": (FP8 | {"export": QUARK["export"]}, packers.fp8),
    "quark-fp8": (quark(E4M3), packers.fp8),
    "quark-row": (quark(E4M3 | {"qscheme": "per_channel", "ch_axis": 0}),
                  partial(packers.fp8, per_row=True)),
    "quark-mxfp4": (quark(MXFP4), packers.mxfp4_quark),
    "bnb-nf4": (BNB, packers.bnb4),
    "bnb-nf4-plain": (BNB, partial(packers.bnb4, nested=False)),
    "bnb-int8": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, packers.bnb8
    ),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
              packers.nvfp4_modelopt),
}  # fmt: skip


def load(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> StoredParameters:
    weights = TensorWeights(tensors)
    return StoredParameters(weights, model_config(LLAMA), FLOAT32, method=method(config))


@pytest.mark.parametrize("case", CASES)
def test_what_a_checkpoint_means(case: str) -> None:
    """Bit for bit in float32, which every product of a code and a scale is exact in or rounded
    once to, by the tests' loops and by the reader."""
    config, pack = CASES[case]
    model = model_config(LLAMA)
    tensors, dense = checkpoint(model, pack)
    source, names = load(tensors, config), architecture("llama").names
    forms = stored_forms(TensorWeights(tensors), model, method(config))
    for parameter in parameters(model):
        parts = source.parts(parameter.name)
        got = source.tensor(parameter.name)
        expected = np.concatenate([dense[name] for name in names.sources(parameter.name)])
        assert np.array_equal(got, expected), parameter.name
        quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
        if parameter.kind != "linear" or parameter.name == "lm_head.weight":
            assert not quantized
            assert parameter.name not in forms
            continue
        assert len(quantized) == len(parts)
        for part, form in zip(quantized, forms[parameter.name], strict=True):
            assert str(part.codes.dtype) == form.codes
            assert (part.bits, part.group) == (form.bits, form.group)
            assert (part.zero is not None) == (form.second in ("zero", "middle"))
            assert (part.codebook is not None) == bool(form.codebook)
            assert (part.permutation is not None) == form.permuted
            assert part.float_activations == form.float_activations


def test_layers_of_quark_by_name() -> None:
    layers = {"*v_proj": {"weight": MXFP4}, "*o_proj": {"weight": None, "output_tensors": E4M3}}
    found = method(quark(E4M3, layer_quant_config=layers, exclude=["re:.*gate$", "model.x*"]))
    assert found.scheme("model.layers.0.self_attn.v_proj") == Mxfp4("weight", "weight_scale")
    assert found.scheme("model.layers.0.self_attn.q_proj") == Fp8()
    dense = ("model.layers.0.self_attn.o_proj", "model.layers.0.mlp.gate", "model.x.y")
    assert [found.scheme(name) for name in dense] == [None] * 3


def test_scales_of_a_cache_by_quarks_names() -> None:
    tensors, _ = checkpoint(model_config(LLAMA), packers.fp8)
    for letter, value in (("k", 0.5), ("v", 0.25)):
        name = f"model.layers.0.self_attn.{letter}_proj.output_scale"
        tensors[name] = torch.tensor(value)
    model = model_config(LLAMA)
    names = architecture("llama").names
    found = match(TensorWeights(tensors), parameters(model), names, method(quark(E4M3)))
    assert {name: stored.rpartition(".")[2] for name, stored in found.kv_scales.items()} == {
        "layers.0.attn.k_scale": "output_scale", "layers.0.attn.v_scale": "output_scale",
    }  # fmt: skip


def test_blocks_that_rows_are_no_multiple_of() -> None:
    layer = packers.bnb4(np.random.default_rng(1), 4, 48)
    scheme = method(BNB).scheme("x")
    tensors = {name: tensor.numpy() for name, tensor in layer.tensors.items()}
    assert np.array_equal(scheme.read(tensors, 4, 48).dequantize(), layer.weight)
    assert scheme.form(48).group == 16


def test_a_head_may_be_quantized() -> None:
    tensors, dense = checkpoint(model_config(LLAMA), packers.gptq, head=True)
    head = load(tensors, GPTQ | {"lm_head": True}).tensor("lm_head.weight")
    assert np.array_equal(head, dense["lm_head.weight"])


def test_layers_left_dense() -> None:
    """Named or not: what is stored dense is dense, and beside quantized layers that it is merged
    with, these become dense, too."""
    tensors, dense = checkpoint(model_config(LLAMA), packers.awq)
    stem = "model.layers.0.self_attn.k_proj"
    for suffix in ("qweight", "qzeros", "scales"):
        del tensors[f"{stem}.{suffix}"]
    tensors[f"{stem}.weight"] = torch.from_numpy(dense[f"{stem}.weight"])
    for config in (AWQ, AWQ | {"modules_to_not_convert": ["k_proj"]}):
        parts = load(tensors, config).parts("layers.0.attn.qkv.weight")
        assert all(isinstance(part, np.ndarray) for part in parts)
        assert np.array_equal(parts[1], dense[f"{stem}.weight"])


@pytest.mark.parametrize("case", ["gptq", "awq", "bnb-nf4", "bnb-int8", "fp8-block", "nvfp4"])
def test_layers_left_dense_of_any_shape(case: str) -> None:
    """Routers, for example: 60 experts fill no words of 4 bits."""
    model = model_config(LLAMA | {"intermediate_size": 100})
    config, pack = CASES[case]

    def some(draw: np.random.Generator, n: int, k: int) -> packers.Layer:
        if 100 not in (n, k):
            return pack(draw, n, k)
        weight = draw.standard_normal((n, k)).astype(np.float32)
        return packers.Layer({"weight": torch.from_numpy(weight)}, weight)

    tensors, dense = checkpoint(model, some)
    source = StoredParameters(TensorWeights(tensors), model, FLOAT32, method=method(config))
    for name, stored in (("attn.out", "self_attn.o_proj"), ("mlp.down", "mlp.down_proj")):
        expected = dense[f"model.layers.0.{stored}.weight"]
        assert np.array_equal(source.tensor(f"layers.0.{name}.weight"), expected)


@pytest.mark.parametrize("merged", [True, False])
def test_merged_layers_that_some_writers_store_apart(merged: bool) -> None:
    """Granite 4: the published files have one tensor of gate and up, Transformers 5 writes two."""
    config = LLAMA | {
        "model_type": "granitemoehybrid", "layer_types": ["attention"], "num_local_experts": 0,
        "shared_intermediate_size": 96,
    }  # fmt: skip
    model = model_config(config)
    tensors, _ = checkpoint(model, packers.awq)
    stem, draw = "model.layers.0.shared_mlp", np.random.default_rng(1)
    stored = {"input_linear": 192} if merged else {"gate_proj": 96, "up_proj": 96}
    made = {f"{stem}.{name}": packers.awq(draw, rows, 64) for name, rows in stored.items()}
    tensors = {name: each for name, each in tensors.items() if "input_linear" not in name}
    for name, layer in made.items():
        tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in layer.tensors.items()}
    source = StoredParameters(TensorWeights(tensors), model, FLOAT32, method=method(AWQ))
    expected = np.concatenate([each.weight for each in made.values()])
    assert np.array_equal(source.tensor("layers.0.mlp.gate_up.weight"), expected)


def test_dynamic_exceptions_of_gptq() -> None:
    config = GPTQ | {
        "dynamic": {
            r"-:.*\.down_proj": {},
            r"+:.*\.o_proj": {"bits": 8, "group_size": 64},
            r".*\.q_proj": {"desc_act": True},
        }
    }
    scheme = method(config).scheme
    assert scheme("model.layers.0.mlp.down_proj") is None
    assert scheme("lm_head") is None
    forms = [scheme(f"model.layers.0.{name}") for name in ("x.o_proj", "x.q_proj", "x.k_proj")]
    o, q, k = (form.form(128) for form in forms if form is not None)
    assert (o.bits, o.group, q.permuted, k.permuted, k.bits) == (8, 64, True, False, 4)


def test_biases_of_zeros_are_ignored() -> None:
    tensors, _ = checkpoint(model_config(LLAMA), packers.gptq)
    name = "model.layers.0.mlp.down_proj.bias"
    tensors[name] = torch.zeros(64, dtype=torch.float16)
    load(tensors, GPTQ)
    tensors[name][3] = 1
    with pytest.raises(CheckpointError, match=r"down_proj\.bias' is a bias"):
        load(tensors, GPTQ)


def test_scales_of_the_kv_cache() -> None:
    tensors, _ = checkpoint(model_config(LLAMA), packers.fp8)
    tensors["model.layers.0.self_attn.k_proj.k_scale"] = torch.tensor(0.5)
    tensors["model.layers.0.self_attn.v_scale"] = torch.tensor([0.25], dtype=torch.bfloat16)
    tensors["model.layers.0.self_attn.q_scale"] = torch.tensor(1.0)
    source = load(tensors, FP8)
    assert source.tensor("layers.0.attn.k_scale").tolist() == [0.5]
    assert source.tensor("layers.0.attn.v_scale").tolist() == [0.25]
    assert not source.has("layers.0.attn.q_scale")


Change = tuple[str, torch.Tensor | None, str]
BROKEN: dict[str, tuple[str, Change]] = {
    "missing": ("gptq", ("qzeros", None, r"down_proj\.qzeros' is missing; expected I32 \[3, 8\]")),
    "shape": ("awq", ("scales", torch.ones(3, 60), r"scales' does not fit.*\[3, 64\], got F32")),
    "dtype": ("gptq", ("qweight", torch.ones(12, 64), r"qweight' does not fit.*I32.*got F32")),
    "g_idx": ("gptq", ("g_idx", torch.zeros(96, dtype=torch.int32), "g_idx does not put 32")),
    "g_idx range": ("gptq", ("g_idx", torch.full((96,), -7, dtype=torch.int32), "g_idx does not")),
    "sym": ("gptq-8-sym", ("qzeros", torch.zeros(3, 16, dtype=torch.int32), "not all 128")),
    "state": (
        "bnb-nf4",
        ("weight.quant_state.bitsandbytes__nf4", torch.zeros(9, dtype=torch.uint8), "quant_state"),
    ),
    "nested": ("bnb-nf4", ("weight.nested_absmax", None, "absmax is quantized, but")),
    "nested size": ("bnb-nf4", ("weight.nested_absmax", torch.ones(7), "nested_absmax has shape")),
    "format": ("bnb-int8", ("weight_format", torch.tensor(2, dtype=torch.uint8), "weight_format")),
    "scale": ("fp8", ("weight_scale", None, "it has 0 of the scales weight_scale, weight_scale_i")),
    "leftover": ("fp8", ("junk", torch.ones(3), r"Unexpected tensors: .*down_proj\.junk")),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_layer_that_is_broken(what: str) -> None:
    case, (suffix, tensor, message) = BROKEN[what]
    config, pack = CASES[case]
    tensors, _ = checkpoint(model_config(LLAMA), pack)
    name = f"model.layers.0.mlp.down_proj.{suffix}"
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    with pytest.raises(CheckpointError, match=message):
        load(tensors, config).parts("layers.0.mlp.down.weight")


def test_a_shape_that_words_cannot_hold() -> None:
    tensors, _ = checkpoint(model_config(LLAMA), packers.awq)
    model = model_config(LLAMA | {"intermediate_size": 100})
    with pytest.raises(CheckpointError, match=r"gate_proj' cannot be quantized as said: 100 rows"):
        stored_forms(TensorWeights(tensors), model, method(AWQ))
