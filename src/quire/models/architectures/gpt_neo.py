"""GPT-Neo: GPT-2 with windows in every other layer, and scores that are not divided."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import gpt2, sliding

NAMES = gpt2.NAMES.but(
    {
        "attn.qkv": tuple(f"attn.attention.{name}_proj" for name in "qkv"),
        "attn.out": ("attn.attention.out_proj",),
    },
    transposed=frozenset(),
    ignored=r".*\.attn\.attention\.(masked_)?bias",
)
_KINDS = {"global": False, "local": True}


def parse(config: hf.HFConfig) -> ModelConfig:
    layers = hf.integer(config, "num_layers", "num_hidden_layers")
    heads = hf.integer(config, "num_heads", "num_attention_heads")
    slides = _slides(config.get("attention_types") or [[["global", "local"], 12]], layers)
    if slides is None or len(slides) != layers:
        raise hf.wrong("attention_types", config.get("attention_types"), f"of {layers} layers")
    names = {"n_layer": layers, "n_head": heads, "n_inner": config.get("intermediate_size")}
    return gpt2.parse(
        {**config, **names},
        attention_scale=1.0,
        qkv_bias=False,
        **sliding.windowed(hf.integer(config, "window_size", default=256), slides),
    )


def _slides(types: Any, layers: int) -> tuple[bool, ...] | None:
    """Return which layers have windows: lists of kinds, each with how often it is repeated."""
    try:
        repeated = (list(names) * min(times, layers + 1) for names, times in types)
        return tuple(_KINDS[kind] for kinds in repeated for kind in kinds)
    except (TypeError, ValueError, KeyError):
        return None
