"""Idefics 3 and SmolVLM: SigLIP on tiles of an image; squares of patches make a row."""

from __future__ import annotations

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    return VisionConfig(
        kind="idefics3",
        image_token=towers.image_token(config, 128257),
        **towers.siglip_shape(vision, hidden_size=1152, num_heads=16, patch_size=32),
        connector=(Product(text.hidden_size, bias=False),),
        fit="split",
        place="tiles",
        merge=hf.integer(config, "scale_factor", default=2),
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=r"model\.(?:vision_model|connector)\.",
    names=towers.tower_names("vision_model", {"connector.0": "connector.modality_projection.proj"}),
    text=((r"^model\.text_model\.", "model."),),
    processor=towers.ON_SIGLIP | {"resample": 1},
    settings=("do_image_splitting", "size"),
)
