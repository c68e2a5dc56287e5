"""SigLIP: a learned query attends to the rows of an image; the result is its embedding."""

from __future__ import annotations

from quire.core.errors import UnsupportedModelError
from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    hf.only(vision, "vision_use_head", True, "embeddings of images")
    shape = towers.siglip_shape(vision)
    if shape["hidden_size"] != text.num_labels:
        raise UnsupportedModelError(
            f"config.json: embeddings of images have {shape['hidden_size']} numbers, and those of "
            f"texts {text.num_labels}.",
            param="projection_size",
        )
    return VisionConfig(
        kind="siglip", image_token=0, **shape, connector=(), fit="square", pool="attention"
    )


_HEAD = "vision_model.head"
ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=r"vision_model\.",
    names=towers.tower_names(
        "vision_model",
        {
            "pool.probe": f"{_HEAD}.probe",
            "pool.qkv": f"{_HEAD}.attention.in_proj",
            "pool.out": f"{_HEAD}.attention.out_proj",
            "pool.norm": f"{_HEAD}.layernorm",
            "pool.up": f"{_HEAD}.mlp.fc1",
            "pool.down": f"{_HEAD}.mlp.fc2",
        },
        ignored=r".*\.position_ids",
    ),
    text=(),
    processor=towers.ON_SIGLIP,
)
