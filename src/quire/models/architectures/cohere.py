"""Cohere (Command R, Aya): attention and feed-forward side by side behind one LayerNorm, and RoPE
that turns neighbours."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama


def parse(config: hf.HFConfig) -> ModelConfig:
    return decoder(config, theta=500_000.0)


def decoder(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """Return the `ModelConfig` of a config.json; `differences` as in `llama.decoder`."""
    hf.only(config, "use_qk_norm", False, "q and k without norms")
    return llama.decoder(
        config,
        bos=5,
        eos=255_001,
        norm="layer_norm",
        norm_eps=hf.number(config, "layer_norm_eps", default=1e-5),
        norm_bias=False,
        norms=("attn_norm", "norm"),
        parallel=2,
        interleaved=True,
        **hf.attention_bias(config),
        logits_scale=hf.number(config, "logit_scale", default=0.0625),
        tie_word_embeddings=hf.boolean(config, "tie_word_embeddings", default=True),
        **differences,
    )
