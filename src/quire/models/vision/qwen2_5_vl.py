"""Qwen2.5-VL: Qwen2-VL with RMSNorms, gated feed-forwards, and windows in most layers."""

from __future__ import annotations

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision.architecture import VisionArchitecture, image_token, sections
from quire.models.vision.qwen2_vl import LAYER, TEXT, TEXT_TYPES, THETA, TOP

_FULL_LAYERS = [7, 15, 23, 31]


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    hf.only(vision, "hidden_act", "silu", "feed-forwards with a gate")
    hidden = hf.integer(vision, "hidden_size", default=3584)
    merge = hf.integer(vision, "spatial_merge_size", default=2)
    full = vision.get("fullatt_block_indexes", _FULL_LAYERS)
    if not isinstance(full, list) or not all(type(layer) is int for layer in full):
        raise hf.wrong("fullatt_block_indexes", full, "a list of layers")
    return VisionConfig(
        kind="qwen2_5_vl",
        image_token=image_token(config, 151655),
        hidden_size=hidden,
        intermediate_size=hf.integer(vision, "intermediate_size", default=3420),
        num_layers=hf.integer(vision, "depth", default=32),
        num_heads=hf.integer(vision, "num_heads", default=16),
        patch_size=hf.integer(vision, "patch_size", default=14),
        activation="silu_mul",
        norm="rms_norm",
        connector=((hidden * merge**2, "gelu"), (text.hidden_size, "none")),
        merge=merge,
        frames=hf.integer(vision, "temporal_patch_size", default=2),
        patch_bias=False,
        rope_theta=THETA,
        window=hf.integer(vision, "window_size", default=112),
        full_layers=tuple(full),
        sections=sections(config),
    )


ARCHITECTURE = VisionArchitecture(
    parse,
    tower=r"(?:model\.)?visual\.",
    names=WeightNames(
        top=TOP,
        layer=LAYER
        | {"mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"), "mlp.down": ("mlp.down_proj",)},
        layer_prefix="visual.blocks.{}.",
        base_prefix="",
        ignored=r".*\.inv_freq",
    ),
    text=TEXT,
    text_types=TEXT_TYPES,
)
