"""Ministral 3 (text): Mistral with YaRN, and queries that grow with their position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.core.layers import QueryGrowth
from quire.core.model_config import ModelConfig, RopeConfig
from quire.models import hf
from quire.models.architectures import llama

_TRAINED = "original_max_position_embeddings"
_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    _TRAINED: 16_384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""Where the config does not say; Transformers' default."""


def parse(config: hf.HFConfig) -> ModelConfig:
    if not config.get("rope_scaling") and config.get("rope_parameters") is None:
        config = {**config, "rope_parameters": _ROPE}
    model = llama.decoder(
        config,
        head_dim=hf.optional(config, "head_dim", 128),
        kv_heads=8,
        norm_eps=1e-5,
        bos=1,
        eos=2,
        sliding_window=hf.optional(config, "sliding_window", None),
    )
    assert model.rope is not None
    return replace(model, query_growth=growth(config, model.rope))


def growth(config: hf.HFConfig, rope: RopeConfig) -> QueryGrowth | None:
    """Return how queries grow with their position, if they do."""
    params = hf.table(config, "rope_scaling") or hf.table(config, "rope_parameters")
    if not params.get("llama_4_scaling_beta"):
        return None
    stretched = rope.scaling in ("yarn", "llama3", "longrope")
    trained = hf.integer(rope.params if stretched else params, _TRAINED)
    return QueryGrowth(hf.number(params, "llama_4_scaling_beta"), trained)
