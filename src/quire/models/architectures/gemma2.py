"""Gemma 2: Gemma with norms behind attention and feed-forward too, soft caps, and every other
layer sliding."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import gemma, llama, sliding

NAMES = llama.NAMES.but(
    {
        "attn_post_norm": ("post_attention_layernorm",),
        "mlp_norm": ("pre_feedforward_layernorm",),
        "mlp_post_norm": ("post_feedforward_layernorm",),
    }
)


def parse(config: hf.HFConfig) -> ModelConfig:
    return gemma.parse(
        config,
        **later_gemma(config, pattern=2),
        attention_softcap=softcap(config, "attn_logit_softcapping", 50.0),
        logits_softcap=softcap(config, "final_logit_softcapping", 30.0),
    )


def later_gemma(config: hf.HFConfig, pattern: int) -> dict[str, Any]:
    """Return the fields that Gemma 2 and 3 share; every `pattern`-th layer attends to all."""
    scalar = hf.number(config, "query_pre_attn_scalar", default=256)
    window = hf.optional(config, "sliding_window", 4096)
    return {
        "activation_field": "hidden_activation",
        "kv_heads": 4,
        "norms": ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "norm"),
        "attention_scale": scalar**-0.5,
        **sliding.windowed(window, sliding.pattern(config, pattern)),
    }


def softcap(config: hf.HFConfig, name: str, default: float | None) -> float | None:
    """Return a soft cap; None if the field is null, `default` if it is absent."""
    if config.get(name, default) is None:
        return None
    return hf.number(config, name, default=default)
