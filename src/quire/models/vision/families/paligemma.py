"""PaliGemma: SigLIP on one square image; all tokens of a prompt see each other."""

from __future__ import annotations

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    return VisionConfig(
        kind="paligemma",
        image_token=towers.image_token(config, 256000),
        **towers.siglip_shape(hf.table(config, "vision_config")),
        connector=(Product(text.hidden_size),),
        fit="square",
        whole="prompt",
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=towers.PROJECTED,
    names=towers.tower_names("vision_tower", {"connector.0": "multi_modal_projector.linear"}),
    text=towers.CAUSAL_LM,
    processor=towers.ON_SIGLIP,
)
