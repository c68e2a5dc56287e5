"""Qwen2-VL: patches of any grid, turned by height and width; four of them make a row."""

from __future__ import annotations

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision.architecture import VisionArchitecture, gelu, image_token, sections

LAYER = {
    "attn_norm": ("norm1",),
    "attn.qkv": ("attn.qkv",),
    "attn.out": ("attn.proj",),
    "mlp_norm": ("norm2",),
}
TOP = {
    "patch": "visual.patch_embed.proj",
    "norm": "visual.merger.ln_q",
    "connector.0": "visual.merger.mlp.0",
    "connector.1": "visual.merger.mlp.2",
}
TEXT = ((r"^model\.language_model\.", "model."),)
TEXT_TYPES = {
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
}
THETA = 10_000.0


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    hidden = hf.integer(vision, "embed_dim", default=1280)
    merge = hf.integer(vision, "spatial_merge_size", default=2)
    return VisionConfig(
        kind="qwen2_vl",
        image_token=image_token(config, 151655),
        hidden_size=hidden,
        intermediate_size=int(hidden * hf.number(vision, "mlp_ratio", default=4.0)),
        num_layers=hf.integer(vision, "depth", default=32),
        num_heads=hf.integer(vision, "num_heads", default=16),
        patch_size=hf.integer(vision, "patch_size", default=14),
        activation=gelu(vision, "hidden_act", "quick_gelu"),
        connector=((hidden * merge**2, "gelu"), (text.hidden_size, "none")),
        merge=merge,
        frames=hf.integer(vision, "temporal_patch_size", default=2),
        patch_bias=False,
        rope_theta=THETA,
        sections=sections(config),
    )


ARCHITECTURE = VisionArchitecture(
    parse,
    tower=r"(?:model\.)?visual\.",
    names=WeightNames(
        top=TOP,
        layer=LAYER | {"mlp.up": ("mlp.fc1",), "mlp.down": ("mlp.fc2",)},
        layer_prefix="visual.blocks.{}.",
        base_prefix="",
        ignored=r".*\.inv_freq",
    ),
    text=TEXT,
    text_types=TEXT_TYPES,
)
