"""Counts and bytes against Transformers' own models, which are never filled (meta device)."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from quire.checkpoint.presets import preset_config, preset_names
from quire.core.quantization import QUANTIZATIONS
from quire.models.memory import (
    kv_bytes_per_token,
    loaded_bytes,
    parameter_count,
    quantized_bytes,
)
from quire.models.parameters import Parameter
from quire.models.registry import is_encoder, model_config
from quire.ops.weights import Epilogue
from tests.native import load_ops
from tests.unit.executor.configs import config as engine_config


@pytest.mark.parametrize("name", preset_names())
def test_parameter_count_equals_transformers(name: str) -> None:
    config = preset_config(name)
    assert config is not None
    model = model_config(config)
    with torch.device("meta"):
        hf_config = AutoConfig.for_model(**config)
        if is_encoder(model):  # without the pooler, which nothing reads
            oracle = AutoModel.from_config(hf_config, add_pooling_layer=False)
        else:
            oracle = AutoModelForCausalLM.from_config(hf_config)
    assert parameter_count(model) == oracle.num_parameters()
    norms = [p.numel() for name, p in oracle.named_parameters() if "norm" in name]
    wider = 2 * sum(norms) if model.norm_gain != "rounded" else 0  # those of 1 + weight are float32
    half = engine_config(model=model, dtype="bfloat16")
    assert loaded_bytes(half) == 2 * parameter_count(model) + wider
    assert loaded_bytes(engine_config(model=model)) == 4 * parameter_count(model)


def test_int8_counts_linear_weights_only() -> None:
    config = preset_config("gpt2")
    assert config is not None
    model = model_config(config)
    hidden, layers, vocab, positions = 768, 12, 50257, 1024
    # qkv, output, up and down of each layer, and the tied output projection, padded to blocks of 32
    # rows: 8 bytes a row more.
    rows = layers * (3 * hidden + hidden + 4 * hidden + hidden) + 50272
    elements = layers * 12 * hidden**2 + 50272 * hidden
    others = parameter_count(model) - layers * 12 * hidden**2 - vocab * hidden
    assert others > positions * hidden
    packed = engine_config(model=model, quantization="int8", ops="cpu")
    assert loaded_bytes(packed) == elements + 8 * rows + 4 * others


@pytest.mark.parametrize("name", QUANTIZATIONS)
@pytest.mark.parametrize("epilogue", ["none", "silu_mul"])
def test_quantized_weights_take_what_is_said(name: str, epilogue: Epilogue) -> None:
    ops, gated = load_ops("cpu", quantization=name), epilogue == "silu_mul"
    for rows, columns in ((32, 64), (2, 1), (70, 129), (66, 500)):
        weight = torch.zeros(rows, columns)
        expected = quantized_bytes(
            Parameter("layers.0.mlp.up.weight", (rows, columns), (), "linear", gated=gated),
            QUANTIZATIONS[name],
        )
        assert ops.pack_linear(weight, epilogue=epilogue).nbytes == expected
    head = quantized_bytes(
        Parameter("lm_head.weight", (70, 129), (), "linear"), QUANTIZATIONS[name]
    )
    assert ops.pack_linear(torch.zeros(70, 129), head=True).nbytes == head


def test_kv_bytes_per_token() -> None:
    config = preset_config("qwen3-0.6b")
    assert config is not None
    # 28 layers, 8 heads of 128, keys and values, 2 bytes.
    assert kv_bytes_per_token(model_config(config), "bfloat16") == 28 * 8 * 128 * 2 * 2
    assert kv_bytes_per_token(model_config(config), "int8") == 28 * 8 * (128 + 2) * 2
    # Keys of 5 bits, values of 4, and a scale of 8.
    assert kv_bytes_per_token(model_config(config), "int4") == 28 * 8 * (80 + 64 + 2)
