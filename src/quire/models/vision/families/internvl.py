"""InternVL: InternViT on tiles of an image; squares of patches make a row."""

from __future__ import annotations

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision import architecture as towers

EPS = 1e-6


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    hf.only(config, "vision_feature_layer", -1, "the last layer")
    hf.only(config, "vision_feature_select_strategy", "default", "the patches without the class")
    hf.only(config, "projector_hidden_act", "gelu", "the projector of InternVL 3")
    hf.only(config, "downsample_ratio", 0.5, "rows of four patches")
    normed = hf.boolean(vision, "use_qk_norm", default=False)
    hf.only(vision, "use_absolute_position_embeddings", True, "learned positions")
    norm, eps = (
        vision.get("norm_type", "layer_norm"),
        hf.number(vision, "layer_norm_eps", default=EPS),
    )
    if normed and eps != EPS:  # norms of queries and keys have this one
        raise hf.wrong("layer_norm_eps", eps, f"{EPS:g}")
    if norm not in ("layer_norm", "rms_norm"):
        raise hf.wrong("norm_type", norm, "layer_norm or rms_norm")
    hidden = text.hidden_size
    return VisionConfig(
        kind="internvl",
        image_token=towers.image_token(config, 151667),
        hidden_size=hf.integer(vision, "hidden_size", default=1024),
        intermediate_size=hf.integer(vision, "intermediate_size", default=4096),
        num_layers=hf.integer(vision, "num_hidden_layers", default=24),
        num_heads=hf.integer(vision, "num_attention_heads", default=16),
        patch_size=towers.square(vision, "patch_size", 14),
        image_size=towers.square(vision, "image_size", 448),
        activation=towers.gelu(vision, "hidden_act", "gelu"),
        norm="rms_norm" if norm == "rms_norm" else "layer_norm",
        norm_eps=eps,
        qk_norm="full" if normed else None,
        connector=(Product(hidden, "gelu", norm="layer"), Product(hidden)),
        fit="canvas",
        place="run",
        merge=2,
        class_token=True,
        qkv_bias=hf.boolean(vision, "attention_bias", default=False),
        final_norm=not hf.boolean(vision, "use_mean_pooling", default=True),
        layer_scale=True,
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=towers.PROJECTED,
    names=WeightNames(
        top={
            "patch": "vision_tower.embeddings.patch_embeddings.projection",
            "class": "vision_tower.embeddings.cls_token",
            "positions": "vision_tower.embeddings.position_embeddings",
            "norm": "vision_tower.layernorm",
            "connector.0.norm": "multi_modal_projector.layer_norm",
            "connector.0": "multi_modal_projector.linear_1",
            "connector.1": "multi_modal_projector.linear_2",
        },
        layer={
            "attn_norm": ("layernorm_before",),
            "attn.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
            "attn.q_norm": ("attention.q_norm",),
            "attn.k_norm": ("attention.k_norm",),
            "attn.out": ("attention.projection_layer",),
            "attn_scale": ("lambda_1",),
            "mlp_norm": ("layernorm_after",),
            "mlp.up": ("mlp.fc1",),
            "mlp.down": ("mlp.fc2",),
            "mlp_scale": ("lambda_2",),
        },
        layer_prefix="vision_tower.encoder.layer.{}.",
        base_prefix="",
        ignored=r".*\.mask_token",
    ),
    text=towers.CAUSAL_LM,
    settings=("crop_to_patches", "min_patches", "max_patches"),
)
