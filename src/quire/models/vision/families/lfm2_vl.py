"""LFM2-VL: SigLIP 2 on patches of any grid, and on tiles of large images."""

from __future__ import annotations

import math

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers

_PROCESSOR = {
    "resample": 2, "min_image_tokens": 64, "max_image_tokens": 256, "min_tiles": 2,
    "max_tiles": 10, "tile_size": 512, "max_pixels_tolerance": 2.0,
}  # fmt: skip
SETTINGS = ("do_image_splitting", "min_tiles", "max_tiles", "min_image_tokens", "max_image_tokens")


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    hf.only(config, "projector_hidden_act", "gelu", "the projector of LFM2-VL")
    vision = hf.table(config, "vision_config")
    places = hf.integer(vision, "num_patches", default=256)
    if (side := math.isqrt(places)) ** 2 != places:
        raise hf.wrong("num_patches", places, "a square number")
    tower = towers.siglip_shape(vision)
    inner = hf.integer(config, "projector_hidden_size", default=2560)
    bias = hf.boolean(config, "projector_bias", default=True)
    normed = hf.boolean(config, "projector_use_layernorm", default=True)
    return VisionConfig(
        kind="lfm2_vl",
        image_token=towers.image_token(config, 396),
        **tower | {"image_size": side * tower["patch_size"]},
        connector=(
            Product(inner, "gelu", bias, norm="layer" if normed else None),
            Product(text.hidden_size, bias=bias),
        ),
        fit="tiled",
        place="labelled",
        positions="smooth",
        channels_last=True,
        merge=hf.integer(config, "downsample_factor", default=2),
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=towers.PROJECTED,
    names=towers.tower_names(
        "vision_tower",
        {
            "connector.0.norm": "multi_modal_projector.layer_norm",
            "connector.0": "multi_modal_projector.linear_1",
            "connector.1": "multi_modal_projector.linear_2",
        },
    ),
    text=towers.CAUSAL_LM,
    processor=towers.ON_SIGLIP | _PROCESSOR,
    settings=SETTINGS,
)
