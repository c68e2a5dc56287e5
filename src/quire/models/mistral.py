"""Mistral: Llama with a sliding window in every layer, where the config gives one."""

from __future__ import annotations

from quire.core.config import ModelConfig
from quire.models import hf, llama
from quire.models.architecture import Architecture


def parse(config: hf.HFConfig, architecture: str = "mistral") -> ModelConfig:
    window = config.get("sliding_window")
    if window is not None:
        window = hf.integer(config, "sliding_window")
    return llama.parse(config, architecture=architecture, sliding_window=window)


ARCHITECTURE = Architecture(parse, llama.NAMES)
