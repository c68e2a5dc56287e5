"""Qwen2 and Qwen2.5: Llama with biased q, k and v, and sliding windows in the upper layers."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, sliding

KV_HEADS = 32
"""Where the config does not say; Transformers' default."""


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(config, qkv_bias=True, kv_heads=KV_HEADS, **sliding.upper_layers(config))
