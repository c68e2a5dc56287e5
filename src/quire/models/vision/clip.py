"""CLIP: the class row of an image, behind one product, is its embedding."""

from __future__ import annotations

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    return VisionConfig(
        kind="clip",
        image_token=0,
        **towers.clip_shape(hf.table(config, "vision_config")),
        connector=((text.num_labels, "none"),),
        connector_bias=False,
        connector_norm="layer",
        pool="class",
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=r"(?:vision_model|visual_projection)\.",
    names=towers.tower_names(
        "vision_model",
        {"connector_norm": "vision_model.post_layernorm", "connector.0": "visual_projection"},
    ),
    text=(),
)
