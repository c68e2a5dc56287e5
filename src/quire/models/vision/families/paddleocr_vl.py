"""PaddleOCR-VL: SigLIP on patches of any grid, turned by height and width, before ERNIE 4.5."""

from __future__ import annotations

from typing import Any

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers
from quire.models.vision.families.qwen2_vl import SETTINGS

_SIZES = {"size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536}}


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    rope = hf.table(vision, "rope_parameters")
    hf.only(rope, "rope_type", "axial", "positions by height and width")
    given = {"intermediate_size": 4304, "num_hidden_layers": 27, "image_size": 384, **vision}
    tower = towers.siglip_shape(given, hidden_size=1152, num_heads=16, patch_size=14)
    merge = hf.integer(vision, "spatial_merge_size", default=2)
    inner = tower["hidden_size"] * merge**2
    return VisionConfig(
        kind="paddleocr_vl",
        image_token=towers.image_token(config, 100_295),
        **tower,
        connector=(Product(inner, "gelu", norm="patch"), Product(text.hidden_size)),
        fit="grown",
        positions="centers",
        merge=merge,
        rope_theta=hf.number(rope, "rope_theta", default=10_000.0),
        sections=towers.sections(config, [16, 24, 24]),
    )


def text_config(text: dict[str, Any]) -> dict[str, Any]:
    """Return the text model's config as that of Llama, which it is but for what is absent."""
    bias = text.get("use_bias") or False
    meant = {
        "head_dim": 128, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "attention_bias": bias,
        "mlp_bias": bias, "tie_word_embeddings": True,
    }  # fmt: skip
    ropes = (hf.table(text, name) for name in ("rope_scaling", "rope_parameters"))
    if not any(table.get("rope_theta") for table in (text, *ropes)):
        meant["rope_theta"] = 500_000.0
    return meant | text


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=r"(?:model\.)?(?:visual|projector)\.|mlp_AR\.",
    names=towers.tower_names(
        "visual.vision_model",
        {
            "connector.0.norm": "projector.pre_norm",
            "connector.0": "projector.linear_1",
            "connector.1": "projector.linear_2",
        },
        ignored=r".*\.(?:position_ids|packing_position_embedding\..*|head\..*)",
    ),
    text=((r"^model\.language_model\.", "model."),),
    text_types={"paddleocr_vl": "llama", "paddleocr_vl_text": "llama"},
    text_config=text_config,
    renamed=(("mlp_AR.", "projector."),),
    processor=towers.ON_CLIP | _SIZES,
    settings=SETTINGS,
)
