"""OLMo 2: Llama with norms only behind attention and feed-forward, and over all of q and of k."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    {
        "attn_post_norm": ("post_attention_layernorm",),
        "mlp_post_norm": ("post_feedforward_layernorm",),
    }
)


def decoder(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """Return the `ModelConfig`; `differences` are OLMo 3's fields."""
    fields: dict[str, Any] = {
        "norm_eps": 1e-5,
        "eos": 50279,
        "norms": ("attn_post_norm", "mlp_post_norm", "norm"),
        "norm_gain": "float32",
        "qk_norm": "full",
        **hf.attention_bias(config),
    }
    return llama.decoder(config, **(fields | differences))


def parse(config: hf.HFConfig) -> ModelConfig:
    """Return OLMo 2's own `ModelConfig`, without windows."""
    hf.only(config, "sliding_window", None, "attention to all tokens before")  # OLMo 3's
    return decoder(config)
