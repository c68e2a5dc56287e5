"""ERNIE 4.5 (dense): Llama with RoPE that turns neighbours."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        head_dim=hf.optional(config, "head_dim", 128),
        kv_heads=2,
        norm_eps=1e-5,
        bos=1,
        eos=2,
        theta=500_000.0,
        interleaved=True,
        **hf.biases(hf.boolean(config, "use_bias", default=False)),
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
    )
