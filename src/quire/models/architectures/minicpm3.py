"""MiniCPM3: dense, with latent attention and scaled embeddings, residual sums and logits."""

from __future__ import annotations

import math

from quire.core.layers import LatentConfig
from quire.core.model_config import ModelConfig
from quire.models import hf, latent

NAMES = latent.NAMES


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "mlp_bias", False, "feed-forwards without biases")
    hidden, heads = hf.integer(config, "hidden_size"), hf.integer(config, "num_attention_heads")
    layers = hf.integer(config, "num_hidden_layers")
    default = LatentConfig(256, 32, 64, max(1, hidden // heads), q_rank=768)
    return latent.parse(
        config,
        default,
        interleaved=False,
        norm_eps=1e-5,
        bos=1,
        eos=2,
        embedding_scale=hf.number(config, "scale_emb", default=12.0),
        embedding_scale_rounded=True,
        residual_scale=_number(config, "scale_depth", 1.4, math.sqrt(layers)) / math.sqrt(layers),
        logits_scale=_number(config, "dim_model_base", 256.0, float(hidden)) / hidden,
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
    )


def _number(config: hf.HFConfig, name: str, absent: float, null: float) -> float:
    """Return a number that may be absent or null, which mean different things."""
    if name in config and config[name] is None:
        return null
    return hf.number(config, name, default=absent)
