"""Gemma 3: SigLIP on one square image, whose patches are averaged into a fixed number of rows."""

from __future__ import annotations

from quire.core.errors import UnsupportedModelError
from quire.core.images import VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision.architecture import CLIP_LAYER, VisionArchitecture, gelu, image_token


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    patch = hf.integer(vision, "patch_size", default=16)
    size = hf.integer(vision, "image_size", default=224)
    rows = hf.integer(config, "mm_tokens_per_image", default=256)
    side = round(rows**0.5)
    if side * side != rows or (size // patch) % side:
        raise UnsupportedModelError(
            f"config.json: mm_tokens_per_image is {rows}; it must be the square of a divisor of "
            f"{size // patch}, the patches of a side.",
            param="mm_tokens_per_image",
        )
    return VisionConfig(
        kind="gemma3",
        image_token=image_token(config, 262144),
        placeholder=hf.integer(config, "boi_token_index", "boi_token_id", default=255999),
        end_token=hf.integer(config, "eoi_token_index", "eoi_token_id", default=256000),
        hidden_size=hf.integer(vision, "hidden_size", default=768),
        intermediate_size=hf.integer(vision, "intermediate_size", default=3072),
        num_layers=hf.integer(vision, "num_hidden_layers", default=12),
        num_heads=hf.integer(vision, "num_attention_heads", default=12),
        patch_size=patch,
        image_size=size,
        activation=gelu(vision, "hidden_act", "gelu_pytorch_tanh"),
        norm_eps=hf.number(vision, "layer_norm_eps", default=1e-6),
        connector=((text.hidden_size, "none"),),
        connector_bias=False,
        connector_norm="rms",
        merge=size // patch // side,
        pooled=True,
        whole="image",
    )


ARCHITECTURE = VisionArchitecture(
    parse,
    tower=r"(?:model\.)?(?:vision_tower|multi_modal_projector)\.",
    names=WeightNames(
        top={
            "patch": "vision_tower.embeddings.patch_embedding",
            "positions": "vision_tower.embeddings.position_embedding",
            "norm": "vision_tower.post_layernorm",
            "connector_norm": "multi_modal_projector.mm_soft_emb_norm",
            "connector.0": "multi_modal_projector.mm_input_projection",
        },
        layer=CLIP_LAYER,
        layer_prefix="vision_tower.encoder.layers.{}.",
        base_prefix="",
        transposed=frozenset({"connector.0"}),
        ignored=r".*\.(?:position_ids|head\..*)",
    ),
    text=(
        (r"^(?:model\.)?language_model\.lm_head\.", "lm_head."),
        (r"^(?:model\.)?language_model\.(?:model\.)?", "model."),
    ),
)
