"""Mistral: Llama with a sliding window, in every layer or, as in Ministral, in some."""

from __future__ import annotations

from quire.core.config import ModelConfig
from quire.core.errors import CheckpointError
from quire.models import hf, llama, qwen2
from quire.models.architecture import Architecture

_WINDOW = 4096


def parse(config: hf.HFConfig) -> ModelConfig:
    window = hf.optional(config, "sliding_window", _WINDOW)
    slides = qwen2.sliding_layers(config)
    if slides is not None and window is None and any(slides):
        raise CheckpointError(
            "config.json: sliding_window is null, but layer_types has layers that slide.",
            fix="Set sliding_window, or make them full_attention.",
            param="sliding_window",
        )
    return llama.parse(
        config,
        architecture="mistral",
        kv_heads=8,
        bos=1,
        eos=2,
        sliding_window=window if slides is None or any(slides) else None,
        sliding_layers=None if slides is None or not any(slides) else slides,
    )


ARCHITECTURE = Architecture(parse, llama.NAMES)
