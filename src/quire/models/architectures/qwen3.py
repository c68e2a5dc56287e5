"""Qwen3 (dense): Llama with a norm over each head of q and k, and Qwen2's sliding windows."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, qwen2, sliding

MTP = "mtp"

_DEFAULT_HEAD_DIM = 128
"""Not hidden_size / heads: that is how Transformers reads a config without it."""


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        head_dim=_DEFAULT_HEAD_DIM,
        kv_heads=qwen2.KV_HEADS,
        qk_norm="head",
        **hf.attention_bias(config),
        **sliding.upper_layers(config),
    )
