"""Counts and bytes against Transformers' own models, which are never filled (meta device)."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from quire.checkpoint.presets import preset_config, preset_names
from quire.models.memory import kv_bytes_per_token, parameter_count, weight_bytes
from quire.models.registry import model_config


@pytest.mark.parametrize("name", preset_names())
def test_parameter_count_equals_transformers(name: str) -> None:
    config = preset_config(name)
    assert config is not None
    model = model_config(config)
    with torch.device("meta"):
        oracle = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert parameter_count(model) == oracle.num_parameters()
    assert weight_bytes(model, "bfloat16") == 2 * parameter_count(model)
    assert weight_bytes(model, "float32") == 4 * parameter_count(model)


def test_int8_counts_linear_weights_only() -> None:
    config = preset_config("gpt2")
    assert config is not None
    model = model_config(config)
    hidden, layers, vocab, positions = 768, 12, 50257, 1024
    # qkv, output, up and down of each layer, and the tied output projection: 8 bytes a row more.
    rows = layers * (3 * hidden + hidden + 4 * hidden + hidden) + vocab
    elements = layers * 12 * hidden**2 + vocab * hidden
    others = parameter_count(model) - elements
    assert others > positions * hidden
    assert weight_bytes(model, "float32", "int8") == elements + 8 * rows + 4 * others


def test_kv_bytes_per_token() -> None:
    config = preset_config("qwen3-0.6b")
    assert config is not None
    # 28 layers, 8 heads of 128, keys and values, 2 bytes.
    assert kv_bytes_per_token(model_config(config), "bfloat16") == 28 * 8 * 128 * 2 * 2
    assert kv_bytes_per_token(model_config(config), "int8") == 28 * 8 * (128 + 2) * 2
