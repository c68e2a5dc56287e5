"""Gemma 3: SigLIP on one square image, whose patches are averaged into a fixed number of rows."""

from __future__ import annotations

from quire.core.errors import UnsupportedModelError
from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    tower = towers.siglip_shape(vision)
    across = tower["image_size"] // tower["patch_size"]
    rows = hf.integer(config, "mm_tokens_per_image", default=256)
    side = round(rows**0.5)
    if side * side != rows or across % side:
        raise UnsupportedModelError(
            f"config.json: mm_tokens_per_image is {rows}; it must be the square of a divisor of "
            f"{across}, the patches of a side.",
            param="mm_tokens_per_image",
        )
    return VisionConfig(
        kind="gemma3",
        image_token=towers.image_token(config, 262144),
        placeholder=hf.integer(config, "boi_token_index", "boi_token_id", default=255999),
        end_token=hf.integer(config, "eoi_token_index", "eoi_token_id", default=256000),
        **tower,
        connector=(Product(text.hidden_size, bias=False, norm="plus_one", eps=tower["norm_eps"]),),
        fit="panned",
        place="lines",
        merge=across // side,
        pooled=True,
        whole="image",
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=towers.PROJECTED,
    names=towers.tower_names(
        "vision_tower",
        {
            "connector.0.norm": "multi_modal_projector.mm_soft_emb_norm",
            "connector.0": "multi_modal_projector.mm_input_projection",
        },
        transposed=frozenset({"connector.0"}),
    ),
    text=towers.CAUSAL_LM,
    processor=towers.ON_SIGLIP | {"resample": 2},
    settings=(
        "do_pan_and_scan",
        "pan_and_scan_min_crop_size",
        "pan_and_scan_max_num_crops",
        "pan_and_scan_min_ratio_to_activate",
    ),
)
