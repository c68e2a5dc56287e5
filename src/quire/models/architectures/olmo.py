"""OLMo (2024): Llama with LayerNorms that have no weights."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "clip_qkv", None, "q, k and v without bounds")
    return llama.decoder(
        {**config, "rms_norm_eps": 1e-5},
        eos=50_279,
        norm="layer_norm",
        norm_weights=False,
        **hf.attention_bias(config),
    )
