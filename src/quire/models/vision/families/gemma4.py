"""Gemma 4: gated layers on patches of any grid; squares of them are averaged into a row."""

from __future__ import annotations

from typing import Any

from quire.core.errors import UnsupportedModelError
from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision import architecture as towers

_BOUNDED = {f"attn.{p}_limits": (f"self_attn.{p}_proj",) for p in "qkv"} | {
    "attn.out_limits": ("self_attn.o_proj",),
    **{f"mlp.{p}_limits": (f"mlp.{p}_proj",) for p in ("gate", "up", "down")},
}


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    hf.only(vision, "attention_bias", False, "attention without biases")
    hf.only(vision, "hidden_activation", "gelu_pytorch_tanh", "a gate of GELU")
    rope = hf.table(vision, "rope_parameters")
    hf.only(rope, "rope_type", "axial", "positions by column and row")
    hidden = hf.integer(vision, "hidden_size", default=768)
    eps = hf.number(vision, "rms_norm_eps", default=1e-6)
    patch = hf.integer(vision, "patch_size", default=16)
    table = hf.table(config, "text_config")
    return VisionConfig(
        kind="gemma4",
        image_token=towers.image_token(config, 258_880),
        begin_token=hf.integer(config, "boi_token_id", default=255_999),
        end_token=hf.integer(config, "eoi_token_id", default=258_882),
        own_token=hf.whole(table, "pad_token_id", 0),
        hidden_size=hidden,
        intermediate_size=hf.integer(vision, "intermediate_size", default=3072),
        num_layers=hf.integer(vision, "num_hidden_layers", default=16),
        **_heads(vision),
        patch_size=patch,
        activation="gelu_tanh_mul",
        connector=(Product(text.hidden_size, bias=False, norm="unit", eps=eps),),
        fit="budget",
        place="framed",
        norm="rms_norm",
        norm_eps=eps,
        norm_gain="float32",
        post_norms=True,
        final_norm=False,
        qk_norm="head",
        v_norm=True,
        attention_scale=1.0,
        merge=hf.integer(vision, "pooling_kernel_size", default=3),
        pooled=True,
        pool_factor=hidden**0.5,
        standardized=hf.boolean(vision, "standardize", default=False),
        clipped=hf.boolean(vision, "use_clipped_linears", default=False),
        channels_last=True,
        patch_bias=False,
        **hf.biases(False),
        positions="axes",
        image_size=patch * hf.integer(vision, "position_embedding_size", default=10_240),
        rope_theta=hf.number(rope, "rope_theta", default=100.0),
        head_order="quarters",
        columns_first=True,
        whole="sliding" if table.get("use_bidirectional_attention") == "vision" else None,
    )


def _heads(vision: hf.HFConfig) -> dict[str, Any]:
    heads = hf.integer(vision, "num_attention_heads", default=12)
    width = hf.integer(vision, "head_dim", default=64)
    kv_heads = hf.integer(vision, "num_key_value_heads", default=12)
    if width % 4 or heads % kv_heads:
        raise UnsupportedModelError(
            f"config.json: vision_config has {heads} heads of {width} and {kv_heads} of keys; "
            "Quire shares heads of keys evenly, and their widths are multiples of 4.",
            param="vision_config",
        )
    return {"num_heads": heads, "kv_heads": kv_heads, "head_dim": width}


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    tower=r"(?:model\.)?(?:vision_tower|embed_vision|audio_tower|embed_audio)\.",
    names=WeightNames(
        top={
            "patch": "vision_tower.patch_embedder.input_proj",
            "positions": "vision_tower.patch_embedder.position_embedding_table",
            "pooled.shift": "vision_tower.std_bias",
            "pooled.scale": "vision_tower.std_scale",
            "connector.0": "embed_vision.embedding_projection",
        },
        layer={
            "attn_norm": ("input_layernorm",),
            "attn_post_norm": ("post_attention_layernorm",),
            "attn.qkv": tuple(f"self_attn.{p}_proj.linear" for p in "qkv"),
            "attn.q_norm": ("self_attn.q_norm",),
            "attn.k_norm": ("self_attn.k_norm",),
            "attn.out": ("self_attn.o_proj.linear",),
            "mlp_norm": ("pre_feedforward_layernorm",),
            "mlp_post_norm": ("post_feedforward_layernorm",),
            "mlp.gate_up": ("mlp.gate_proj.linear", "mlp.up_proj.linear"),
            "mlp.down": ("mlp.down_proj.linear",),
            **_BOUNDED,
        },
        layer_prefix="vision_tower.encoder.layers.{}.",
        base_prefix="",
        ignored=r"(?:audio_tower|embed_audio)\..*",
    ),
    text=towers.CAUSAL_LM,
    processor=towers.ON_SIGLIP | {"do_normalize": False, "max_soft_tokens": 280},
    settings=("max_soft_tokens",),
)
