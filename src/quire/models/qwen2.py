"""Qwen2 and Qwen2.5: Llama with biased q, k and v, and sliding windows in the upper layers."""

from __future__ import annotations

from typing import Any

from quire.core.config import ModelConfig
from quire.core.errors import CheckpointError
from quire.models import hf, llama
from quire.models.architecture import Architecture

_LAYER_TYPES = ("full_attention", "sliding_attention")


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.parse(config, architecture="qwen2", qkv_bias=True, **sliding(config))


def sliding(config: hf.HFConfig) -> dict[str, Any]:
    """The fields of sliding attention: none unless `use_sliding_window`; then of the layers that
    `layer_types` names, or of those from `max_window_layers` on."""
    if not hf.boolean(config, "use_sliding_window", default=False):
        return {}
    slides = sliding_layers(config)
    if slides is None:
        first = (
            0
            if config.get("max_window_layers") == 0
            else (hf.integer(config, "max_window_layers", default=28))
        )
        layers = hf.integer(config, "num_hidden_layers")
        slides = tuple(layer >= first for layer in range(layers))
    if not any(slides):
        return {}
    window = hf.integer(config, "sliding_window", default=4096)
    return {"sliding_window": window, "sliding_layers": slides}


def sliding_layers(config: hf.HFConfig) -> tuple[bool, ...] | None:
    """Which layers `layer_types` says to slide; None where it is not given."""
    layers = hf.integer(config, "num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        return None
    if len(types) != layers or any(kind not in _LAYER_TYPES for kind in types):
        raise CheckpointError(
            f"config.json: layer_types is {types!r}; it must have {layers} entries, each "
            f"{' or '.join(_LAYER_TYPES)}.",
            param="layer_types",
        )
    return tuple(kind == "sliding_attention" for kind in types)


ARCHITECTURE = Architecture(parse, llama.NAMES)
