"""Qwen2-VL: patches of any grid, turned by height and width; four of them make a row."""

from __future__ import annotations

from typing import Any

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision import architecture as towers

TOWER = r"(?:model\.)?visual\."
TOP = {
    "patch": "visual.patch_embed.proj",
    "norm": "visual.merger.ln_q",
    "connector.0": "visual.merger.mlp.0",
    "connector.1": "visual.merger.mlp.2",
}
TEXT = ((r"^model\.language_model\.", "model."),)
SETTINGS = ("min_pixels", "max_pixels", "size")
TEXT_TYPES = {
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
}


def grid(
    config: hf.HFConfig,
    text: ModelConfig,
    hidden: int,
    *,
    layers: int = 32,
    patch: int = 14,
    turned: bool = True,
    sections: list[int] | None = None,
) -> dict[str, Any]:
    """Return the fields that Qwen's towers share; the arguments are what absent ones mean.

    Without `turned`, the text model has plain positions."""
    vision = hf.table(config, "vision_config")
    rope = hf.table(vision, "rope_parameters")
    if rope.get("rope_type") != "axial":  # as Transformers writes it
        hf.only(rope, "rope_type", "default", "towers without scaled positions")
    merge = hf.integer(vision, "spatial_merge_size", default=2)
    return {
        "image_token": towers.image_token(config, 151655),
        "hidden_size": hidden,
        "num_layers": hf.integer(vision, "depth", default=layers),
        "num_heads": hf.integer(vision, "num_heads", default=16),
        "patch_size": hf.integer(vision, "patch_size", default=patch),
        "connector": (Product(hidden * merge**2, "gelu"), Product(text.hidden_size)),
        "positions": "none",
        "merge": merge,
        "frames": hf.integer(vision, "temporal_patch_size", default=2),
        "rope_theta": hf.number(rope, "rope_theta", default=10_000.0),
        "sections": towers.sections(config, sections) if turned else (),
    }


def names(top: dict[str, str], mlp: dict[str, tuple[str, ...]]) -> WeightNames:
    """Return the names of the tensors of Qwen's towers."""
    layer = {
        "attn_norm": ("norm1",),
        "attn.qkv": ("attn.qkv",),
        "attn.out": ("attn.proj",),
        "mlp_norm": ("norm2",),
    }
    prefix = "visual.blocks.{}."
    return WeightNames(top, layer | mlp, prefix, base_prefix="", ignored=r".*\.inv_freq")


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    hidden = hf.integer(vision, "embed_dim", default=1280)
    return VisionConfig(
        kind="qwen2_vl",
        **grid(config, text, hidden),
        intermediate_size=int(hidden * hf.number(vision, "mlp_ratio", default=4.0)),
        activation=towers.gelu(vision, "hidden_act", "quick_gelu"),
        patch_bias=False,
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    TOWER,
    names(TOP, {"mlp.up": ("mlp.fc1",), "mlp.down": ("mlp.fc2",)}),
    text=TEXT,
    text_types=TEXT_TYPES,
    settings=SETTINGS,
)
