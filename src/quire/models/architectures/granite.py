"""Granite 3 (dense): Llama with factors of embeddings, residual sums, attention and logits."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama


def parse(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """Return the `ModelConfig`; `differences` are Granite 4's fields."""
    divisor = hf.factor(config, "logits_scaling")
    fields: dict[str, Any] = {
        "bos": 1,
        "eos": 2,
        **hf.attention_bias(config),
        "mlp_bias": hf.boolean(config, "mlp_bias", default=False),
        "embedding_scale": hf.factor(config, "embedding_multiplier"),
        "residual_scale": hf.factor(config, "residual_multiplier"),
        "attention_scale": hf.number(config, "attention_multiplier", default=1.0),
        "logits_scale": None if divisor is None else 1.0 / divisor,
    }
    return llama.decoder(config, **(fields | differences))
