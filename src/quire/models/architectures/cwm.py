"""CWM: Llama, of whose layers three of four slide."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, sliding

_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
"""Where the config does not say; Transformers' default."""
_ENDS = [128_001, 128_008, 128_009]


def parse(config: hf.HFConfig) -> ModelConfig:
    slides = sliding.layer_types(config)
    if slides is None:
        slides = tuple(i % 4 != 0 for i in range(hf.integer(config, "num_hidden_layers")))
    if not config.get("rope_scaling") and config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _ROPE}
    if config.get("eos_token_id") is None:
        config = {**config, "eos_token_id": _ENDS}
    return llama.decoder(
        config,
        head_dim=hf.optional(config, "head_dim", 128),
        kv_heads=8,
        norm_eps=1e-5,
        theta=1e6,
        bos=128_000,
        mlp_bias=hf.boolean(config, "mlp_bias", default=False),
        **sliding.windowed(hf.optional(config, "sliding_window", 8192), slides),
    )
