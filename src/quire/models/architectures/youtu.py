"""Youtu-LLM: dense, with DeepSeek-V3's latent attention."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf, latent
from quire.models.architectures import deepseek_v2

NAMES = latent.NAMES


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "mlp_bias", False, "feed-forwards without biases")
    return latent.parse(
        config,
        deepseek_v2.DEFAULT,
        interleaved=hf.flag(config, "rope_interleave", default=True),
        bos=128_000,
        eos=128_001,
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
    )
