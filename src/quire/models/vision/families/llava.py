"""LLaVA 1.5: CLIP's patches, of a layer before the last, behind two products; or SigLIP's."""

from __future__ import annotations

from dataclasses import replace

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.vision import architecture as towers


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    hf.only(config, "projector_hidden_act", "gelu", "the projector of LLaVA 1.5")
    if vision.get("model_type") == "siglip_vision_model":
        tower = towers.siglip_shape(vision) | {"final_norm": False, "kind": "llava_siglip"}
    else:
        why = "the patches without the class"
        hf.only(config, "vision_feature_select_strategy", "default", why)
        tower = towers.clip_shape(vision) | {"kind": "llava"}
    hidden = text.hidden_size
    bias = hf.boolean(config, "multimodal_projector_bias", default=True)
    return VisionConfig(
        image_token=towers.image_token(config, 32000),
        **tower | towers.features_read(config, tower["num_layers"], -2),
        fit="cropped",
        connector=(Product(hidden, "gelu", bias), Product(hidden, bias=bias)),
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=towers.PROJECTED,
    names=towers.tower_names(
        "vision_tower",
        {
            "connector.0": "multi_modal_projector.linear_1",
            "connector.1": "multi_modal_projector.linear_2",
        },
        # Layers behind the one that is read.
        ignored=r".*\.(?:position_ids|post_layernorm\..*|head\..*|layers\.\d+\..*)",
    ),
    text=towers.CAUSAL_LM,
)
ON_SIGLIP = replace(ARCHITECTURE, processor=towers.ON_SIGLIP)
