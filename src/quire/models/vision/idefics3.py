"""Idefics 3 and SmolVLM: SigLIP on tiles of an image; squares of patches make a row."""

from __future__ import annotations

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision.architecture import CLIP_LAYER, VisionArchitecture, gelu, image_token


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    return VisionConfig(
        kind="idefics3",
        image_token=image_token(config, 128257),
        hidden_size=hf.integer(vision, "hidden_size", default=1152),
        intermediate_size=hf.integer(vision, "intermediate_size", default=3072),
        num_layers=hf.integer(vision, "num_hidden_layers", default=12),
        num_heads=hf.integer(vision, "num_attention_heads", default=16),
        patch_size=hf.integer(vision, "patch_size", default=32),
        image_size=hf.integer(vision, "image_size", default=224),
        activation=gelu(vision, "hidden_act", "gelu_pytorch_tanh"),
        norm_eps=hf.number(vision, "layer_norm_eps", default=1e-6),
        connector=((text.hidden_size, "none"),),
        connector_bias=False,
        merge=hf.integer(config, "scale_factor", default=2),
    )


ARCHITECTURE = VisionArchitecture(
    parse,
    tower=r"model\.(?:vision_model|connector)\.",
    names=WeightNames(
        top={
            "patch": "vision_model.embeddings.patch_embedding",
            "positions": "vision_model.embeddings.position_embedding",
            "norm": "vision_model.post_layernorm",
            "connector.0": "connector.modality_projection.proj",
        },
        layer=CLIP_LAYER,
        layer_prefix="vision_model.encoder.layers.{}.",
        base_prefix="",
        ignored=r".*\.position_ids",
    ),
    text=((r"^model\.text_model\.", "model."),),
)
