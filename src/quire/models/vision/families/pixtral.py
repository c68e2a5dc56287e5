"""LLaVA on Pixtral: patches of any grid, turned by height and width, behind two products."""

from __future__ import annotations

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision import architecture as towers

EPS = 1e-5
"""Of all norms, whatever the config says."""
_GATED = {"silu": "silu_mul", "gelu": "gelu_mul"}


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    strategy = {"vision_feature_select_strategy": "default", **config}
    hf.only(strategy, "vision_feature_select_strategy", "full", "all patches")
    return pixtral(config, text, token=32000, layer=-2, bias=True)


def pixtral(
    config: hf.HFConfig, text: ModelConfig, *, token: int, layer: int, bias: bool
) -> VisionConfig:
    """Return a tower of Pixtral; `token`, `layer` and `bias` are what an absent field means."""
    vision = hf.table(config, "vision_config")
    hf.only(config, "projector_hidden_act", "gelu", "the projector of Pixtral")
    hf.only(vision, "num_channels", 3, "images of three channels")
    layers = hf.integer(vision, "num_hidden_layers", default=24)
    activation = vision.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _GATED:
        raise hf.wrong("hidden_act", activation, f"one of {', '.join(_GATED)}")
    hidden, heads = (
        hf.integer(vision, name, default=default)
        for name, default in (("hidden_size", 1024), ("num_attention_heads", 16))
    )
    hf.only(vision, "head_dim", hidden // heads, "heads that together are as wide as the tower")
    rope = hf.table(vision, "rope_parameters")
    if rope.get("rope_type") != "default":  # as Transformers once wrote it
        hf.only(rope, "rope_type", "axial", "positions by height and width")
    bias = hf.boolean(config, "multimodal_projector_bias", default=bias)
    theta = hf.number(vision, "rope_theta", default=10_000.0)
    return VisionConfig(
        kind="pixtral",
        image_token=towers.image_token(config, token),
        hidden_size=hidden,
        intermediate_size=hf.integer(vision, "intermediate_size", default=4096),
        num_layers=towers.layers_read(config, layers, layer),
        num_heads=heads,
        patch_size=towers.square(vision, "patch_size", 16),
        image_size=towers.square(vision, "image_size", 1024),
        activation="silu_mul" if activation == "silu" else "gelu_mul",
        connector=(Product(text.hidden_size, "gelu", bias), Product(text.hidden_size, bias=bias)),
        fit="bounded",
        place="ended_lines",
        positions="none",
        norm="rms_norm",
        norm_eps=EPS,
        patch_bias=False,
        mlp_bias=False,
        qkv_bias=False,
        output_bias=False,
        embed_norm=True,
        final_norm=False,
        rope_theta=hf.number(rope, "rope_theta", default=theta),
        alternate=True,
        line_ends=True,
    )


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=towers.PROJECTED,
    names=WeightNames(
        top={
            "patch": "vision_tower.patch_conv",
            "embed_norm": "vision_tower.ln_pre",
            "connector.0": "multi_modal_projector.linear_1",
            "connector.1": "multi_modal_projector.linear_2",
        },
        layer={
            "attn_norm": ("attention_norm",),
            "attn.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
            "attn.out": ("attention.o_proj",),
            "mlp_norm": ("ffn_norm",),
            "mlp.gate_up": ("feed_forward.gate_proj", "feed_forward.up_proj"),
            "mlp.down": ("feed_forward.down_proj",),
        },
        layer_prefix="vision_tower.transformer.layers.{}.",
        base_prefix="",
        # Layers behind the one that is read.
        ignored=r".*\.layers\.\d+\..*",
    ),
    text=towers.CAUSAL_LM,
    settings=("size",),
)
