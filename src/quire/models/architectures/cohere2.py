"""Cohere 2 (Command R7B, Command A): Cohere, of whose layers three of four slide and have RoPE; the
others have no positions."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import cohere, sliding


def parse(config: hf.HFConfig) -> ModelConfig:
    slides = sliding.pattern(config, hf.integer(config, "sliding_window_pattern", default=4))
    return cohere.decoder(
        config,
        rotated_layers=slides,
        **sliding.windowed(hf.optional(config, "sliding_window", 4096), slides),
    )
