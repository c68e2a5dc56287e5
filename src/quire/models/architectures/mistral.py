"""Mistral: Llama with a sliding window, in every layer or, as in Ministral, in some."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, sliding


def parse(config: hf.HFConfig) -> ModelConfig:
    window = hf.optional(config, "sliding_window", 4096)
    slides = sliding.layer_types(config)
    fields = {"sliding_window": window} if slides is None else sliding.windowed(window, slides)
    return llama.decoder(config, kv_heads=8, bos=1, eos=2, **fields)
