"""CLIP: the class row of an image, behind one product, is its embedding."""

from __future__ import annotations

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    shape = towers.clip_shape(hf.table(config, "vision_config"))
    return VisionConfig(
        kind="clip",
        image_token=0,
        **shape,
        connector=(Product(text.num_labels, bias=False, norm="layer", eps=shape["norm_eps"]),),
        fit="cropped",
        pool="class",
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=r"(?:vision_model|visual_projection)\.",
    names=towers.tower_names(
        "vision_model",
        {"connector.0.norm": "vision_model.post_layernorm", "connector.0": "visual_projection"},
    ),
    text=(),
)
