"""Qwen2.5-VL: Qwen2-VL with RMSNorms, gated feed-forwards, and windows in most layers."""

from __future__ import annotations

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers
from quire.models.vision.families.qwen2_vl import (
    SETTINGS,
    TEXT,
    TEXT_TYPES,
    TOP,
    TOWER,
    grid,
    names,
)

_FULL_LAYERS = [7, 15, 23, 31]


def parse(
    config: hf.HFConfig, text: ModelConfig, *, kind: str = "qwen2_5_vl", turned: bool = True
) -> VisionConfig:
    """Return a tower; without `turned`, the text model has plain positions."""
    vision = hf.table(config, "vision_config")
    hf.only(vision, "hidden_act", "silu", "feed-forwards with a gate")
    full = vision.get("fullatt_block_indexes", _FULL_LAYERS)
    if not isinstance(full, list) or not all(type(layer) is int for layer in full):
        raise hf.wrong("fullatt_block_indexes", full, "a list of layers")
    return VisionConfig(
        kind=kind,
        **grid(config, text, hf.integer(vision, "hidden_size", default=3584), turned=turned),
        intermediate_size=hf.integer(vision, "intermediate_size", default=3420),
        activation="silu_mul",
        norm="rms_norm",
        patch_bias=False,
        window=hf.integer(vision, "window_size", default=112),
        full_layers=tuple(full),
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    TOWER,
    names(TOP, {"mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"), "mlp.down": ("mlp.down_proj",)}),
    text=TEXT,
    text_types=TEXT_TYPES,
    settings=SETTINGS,
)
