"""A model's cost from its configuration: bytes and operations counted by hand."""

from __future__ import annotations

import pytest

from quire.checkpoint.presets import preset_config
from quire.core.config import ModelConfig
from quire.core.cost import PROFILES
from quire.models.cost import roofline
from quire.models.registry import model_config

LAYERS = 28 * (1024 * (16 + 2 * 8) * 128 + 16 * 128 * 1024 + 3 * 1024 * 3072)
HEAD = 151_936 * 1024


def _model(name: str) -> ModelConfig:
    config = preset_config(name)
    assert config is not None
    return model_config(config)


def test_qwen3_by_hand() -> None:
    model = _model("qwen3-0.6b")
    cost = roofline(model, PROFILES["h100"], dtype="bfloat16")
    assert cost.flops_per_token == 2 * LAYERS
    assert cost.flops_per_row == 2 * HEAD
    assert cost.flops_per_pair == 4 * 28 * 16 * 128
    assert cost.kv_bytes_per_token == 2 * 28 * 8 * 128 * 2
    assert cost.weight_bytes == pytest.approx(2 * (LAYERS + HEAD), rel=1e-3)


def test_quantization_saves_bytes_and_multiplies_faster() -> None:
    model = _model("opt-125m")
    plain = roofline(model, PROFILES["epyc-9654"], dtype="bfloat16")
    int8 = roofline(model, PROFILES["epyc-9654"], dtype="bfloat16", quantization="int8")
    wide = roofline(model, PROFILES["epyc-9654"], dtype="bfloat16", quantization="int8_w8a16")
    assert int8.weight_bytes == wide.weight_bytes < 0.55 * plain.weight_bytes
    assert int8.flops_per_second == 2 * wide.flops_per_second
    small = roofline(model, PROFILES["epyc-9654"], dtype="bfloat16", kv_cache_dtype="int8")
    assert small.kv_bytes_per_token < 0.52 * plain.kv_bytes_per_token
