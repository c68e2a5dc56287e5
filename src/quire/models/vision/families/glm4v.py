"""GLM-4.1V, GLM-4.5V, GLM-4.6V and GLM-OCR: gated layers on patches of any grid, behind a
convolution that makes a row of four."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.core.images import Product, VisionConfig
from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames
from quire.models.vision import architecture as towers
from quire.models.vision.families.qwen2_vl import SETTINGS, TEXT, TOWER, grid

_SIZES = {"size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}}


def parse(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    return VisionConfig(
        **_tower({"image_token_id": 151343, **config}, text, hidden=1536, heads=12, inner=13696),
        intermediate_size=text.hidden_size,
        image_size=towers.square(vision, "image_size", 336),
        positions="cubic",
        patch_norm=True,
        **hf.biases(False) | {"qkv_bias": hf.boolean(vision, "attention_bias", default=False)},
    )


def parse_ocr(config: hf.HFConfig, text: ModelConfig) -> VisionConfig:
    vision = hf.table(config, "vision_config")
    inner = text.hidden_size * hf.integer(vision, "in_channels", default=3)
    whole = {"image_token_id": 59280, **config}
    whole["vision_config"] = {**vision, "intermediate_size": inner}
    return VisionConfig(
        **_tower(whole, text, hidden=1024, heads=16, inner=inner),
        intermediate_size=hf.integer(vision, "intermediate_size", default=4096),
        positions="none",
        qk_norm="head",
        **hf.biases(hf.boolean(vision, "attention_bias", default=True)),
    )


def _tower(
    config: hf.HFConfig, text: ModelConfig, *, hidden: int, heads: int, inner: int
) -> dict[str, Any]:
    """Return the fields that all these towers share; the numbers are what absent ones mean."""
    vision = hf.table(config, "vision_config")
    out = text.hidden_size
    hf.only(vision, "out_hidden_size", out, "towers as wide as the text model in the end")
    hf.only(vision, "hidden_act", "silu", "feed-forwards with a gate")
    hidden = hf.integer(vision, "hidden_size", default=hidden)
    inner = hf.integer(vision, "intermediate_size", default=inner)
    whole = {**config, "vision_config": {"num_heads": heads, **vision}}
    found = grid(whole, text, hidden, layers=24, sections=[8, 12, 12])
    del found["positions"]
    return found | {
        "kind": "glm4v",
        "fit": "frames",
        "activation": "silu_mul",
        "norm": "rms_norm",
        "norm_eps": hf.number(vision, "rms_norm_eps", default=1e-5),
        "by_channel": True,
        "connector": (
            Product(out),
            Product(out, bias=False),
            Product(inner, "silu_mul", bias=False, norm="layer", norm_activation="gelu"),
            Product(out, bias=False),
        ),
    }


def text_config(text: dict[str, Any]) -> dict[str, Any]:
    """Return a text_config as that of GLM-4, whose absent fields mean something else."""
    meant: dict[str, Any] = {"rms_norm_eps": 1e-5}
    if text.get("model_type") == "glm4v_moe_text":
        meant["attention_bias"] = True
    else:
        hidden, heads = text.get("hidden_size", 4096), text.get("num_attention_heads", 32)
        if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
            meant["head_dim"] = hidden // heads
        ropes = (hf.table(text, name) for name in ("rope_scaling", "rope_parameters"))
        if not any("partial_rotary_factor" in table for table in (text, *ropes)):
            meant["partial_rotary_factor"] = 1.0
        if text.get("model_type") == "glm_ocr_text":
            meant["attention_bias"] = False
    return meant | {name: value for name, value in text.items() if value is not None}


ARCHITECTURE = towers.VisionArchitecture(
    parse,
    TOWER,
    WeightNames(
        top={
            "patch": "visual.patch_embed.proj",
            "patch.norm": "visual.post_conv_layernorm",
            "positions": "visual.embeddings.position_embedding",
            "norm": "visual.post_layernorm",
            "connector.0": "visual.downsample",
            "connector.1": "visual.merger.proj",
            "connector.2.norm": "visual.merger.post_projection_norm",
            "connector.2": ("visual.merger.gate_proj", "visual.merger.up_proj"),
            "connector.3": "visual.merger.down_proj",
        },
        layer={
            "attn_norm": ("norm1",),
            "attn.qkv": ("attn.qkv",),
            "attn.q_norm": ("attn.q_norm",),
            "attn.k_norm": ("attn.k_norm",),
            "attn.out": ("attn.proj",),
            "mlp_norm": ("norm2",),
            "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
            "mlp.down": ("mlp.down_proj",),
        },
        layer_prefix="visual.blocks.{}.",
        base_prefix="",
    ),
    text=TEXT,
    text_config=text_config,
    text_types={"glm4v_text": "glm4", "glm4v_moe_text": "glm4_moe", "glm_ocr_text": "glm4"},
    processor=towers.ON_CLIP | _SIZES,
    settings=SETTINGS,
)
OCR = replace(ARCHITECTURE, parse=parse_ocr)
