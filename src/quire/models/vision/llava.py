"""LLaVA 1.5: CLIP's patches, of a layer before the last, behind two products."""

from __future__ import annotations

from quire.core.errors import UnsupportedModelError
from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision.architecture import CLIP_LAYER, VisionArchitecture, gelu, image_token


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    hf.only(vision, "model_type", "clip_vision_model", "LLaVA on CLIP")
    hf.only(config, "vision_feature_select_strategy", "default", "the patches without the class")
    hf.only(config, "projector_hidden_act", "gelu", "the projector of LLaVA 1.5")
    layers = hf.integer(vision, "num_hidden_layers", default=12)
    feature = config.get("vision_feature_layer", -2)
    if type(feature) is not int or not -layers <= feature < 0:
        raise UnsupportedModelError(
            f"config.json: vision_feature_layer is {feature!r}; Quire reads one layer, counted "
            "from the end.",
            param="vision_feature_layer",
        )
    hidden = text.hidden_size
    return VisionConfig(
        kind="llava",
        image_token=image_token(config, 32000),
        hidden_size=hf.integer(vision, "hidden_size", default=768),
        intermediate_size=hf.integer(vision, "intermediate_size", default=3072),
        num_layers=layers + 1 + feature,
        num_heads=hf.integer(vision, "num_attention_heads", default=12),
        patch_size=hf.integer(vision, "patch_size", default=32),
        image_size=hf.integer(vision, "image_size", default=224),
        activation=gelu(vision, "hidden_act", "quick_gelu"),
        norm_eps=hf.number(vision, "layer_norm_eps", default=1e-5),
        connector=((hidden, "gelu"), (hidden, "none")),
        connector_bias=hf.boolean(config, "multimodal_projector_bias", default=True),
        class_token=True,
        patch_bias=False,
        embed_norm=True,
        final_norm=False,
    )


ARCHITECTURE = VisionArchitecture(
    parse,
    tower=r"(?:model\.)?(?:vision_tower|multi_modal_projector)\.",
    names=WeightNames(
        top={
            "patch": "vision_tower.embeddings.patch_embedding",
            "class": "vision_tower.embeddings.class_embedding",
            "positions": "vision_tower.embeddings.position_embedding",
            "embed_norm": "vision_tower.pre_layrnorm",
            "connector.0": "multi_modal_projector.linear_1",
            "connector.1": "multi_modal_projector.linear_2",
        },
        layer=CLIP_LAYER,
        layer_prefix="vision_tower.encoder.layers.{}.",
        base_prefix="",
        # Layers behind the one that is read.
        ignored=r".*\.(?:position_ids|post_layernorm\..*|layers\.\d+\..*)",
    ),
    text=(
        (r"^(?:model\.)?language_model\.lm_head\.", "lm_head."),
        (r"^(?:model\.)?language_model\.(?:model\.)?", "model."),
    ),
)
