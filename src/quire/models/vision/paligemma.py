"""PaliGemma: SigLIP on one square image; all tokens of a prompt see each other."""

from __future__ import annotations

from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision.architecture import CLIP_LAYER, VisionArchitecture, gelu, image_token


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    return VisionConfig(
        kind="paligemma",
        image_token=image_token(config, 256000),
        hidden_size=hf.integer(vision, "hidden_size", default=768),
        intermediate_size=hf.integer(vision, "intermediate_size", default=3072),
        num_layers=hf.integer(vision, "num_hidden_layers", default=12),
        num_heads=hf.integer(vision, "num_attention_heads", default=12),
        patch_size=hf.integer(vision, "patch_size", default=16),
        image_size=hf.integer(vision, "image_size", default=224),
        activation=gelu(vision, "hidden_act", "gelu_pytorch_tanh"),
        norm_eps=hf.number(vision, "layer_norm_eps", default=1e-6),
        connector=((text.hidden_size, "none"),),
        whole="prompt",
    )


ARCHITECTURE = VisionArchitecture(
    parse,
    tower=r"(?:model\.)?(?:vision_tower|multi_modal_projector)\.",
    names=WeightNames(
        top={
            "patch": "vision_tower.embeddings.patch_embedding",
            "positions": "vision_tower.embeddings.position_embedding",
            "norm": "vision_tower.post_layernorm",
            "connector.0": "multi_modal_projector.linear",
        },
        layer=CLIP_LAYER,
        layer_prefix="vision_tower.encoder.layers.{}.",
        base_prefix="",
        ignored=r".*\.(?:position_ids|head\..*)",
    ),
    text=(
        (r"^(?:model\.)?language_model\.lm_head\.", "lm_head."),
        (r"^(?:model\.)?language_model\.(?:model\.)?", "model."),
    ),
)
