"""Fields and names of latent attention, as in DeepSeek's config.json files and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.core.errors import UnsupportedModelError
from quire.core.layers import LatentConfig, yarn_mscale
from quire.core.model_config import ModelConfig, RopeConfig
from quire.models import hf
from quire.models import rope as ropes
from quire.models.architectures import llama

_LAYER = {name: found for name, found in llama.NAMES.layer.items() if name != "attn.qkv"} | {
    "attn.q": ("self_attn.q_proj",),
    "attn.q_a": ("self_attn.q_a_proj",),
    "attn.q_a_norm": ("self_attn.q_a_layernorm",),
    "attn.q_b": ("self_attn.q_b_proj",),
    "attn.kv_a": ("self_attn.kv_a_proj_with_mqa",),
    "attn.kv_a_norm": ("self_attn.kv_a_layernorm",),
    "attn.kv_b": ("self_attn.kv_b_proj",),
}
NAMES = replace(llama.NAMES, layer=_LAYER)


def parse(
    config: hf.HFConfig,
    default: LatentConfig,
    *,
    interleaved: bool = False,
    rotates: bool = True,
    theta: float = ropes.DEFAULT_THETA,
    **differences: Any,
) -> ModelConfig:
    """Return the `ModelConfig` of a decoder with latent attention.

    Args:
        default: what absent fields mean.
        interleaved: see `models.rope.rope`.
        rotates: the parts of keys and queries that usually have RoPE have it.
        differences: see `llama.decoder`.
    """
    heads = hf.integer(config, "num_attention_heads")
    hf.only(config, "num_key_value_heads", heads, "latent attention has one per query head")
    latent = LatentConfig(
        rank=hf.integer(config, "kv_lora_rank", default=default.rank),
        rope_dim=hf.integer(config, "qk_rope_head_dim", default=default.rope_dim),
        nope_dim=hf.integer(config, "qk_nope_head_dim", default=default.nope_dim),
        value_dim=hf.integer(config, "v_head_dim", default=default.value_dim),
        q_rank=hf.optional(config, "q_lora_rank", default.q_rank),
    )
    longest = hf.integer(config, "max_position_embeddings")
    rope = None
    if rotates:
        rope = ropes.rope(config, latent.rope_dim, longest, interleaved=interleaved, theta=theta)
    if rope is not None and rope.rotary_dim != latent.rope_dim:
        raise UnsupportedModelError(
            "config.json: a part of qk_rope_head_dim is rotated; Quire rotates all of it.",
            param="partial_rotary_factor",
        )
    plain = {name: value for name, value in config.items() if name != "head_dim"}
    return llama.decoder(
        plain,
        rope=rope,
        latent=latent,
        num_key_value_heads=1,
        head_dim=latent.row,
        attention_scale=_scale(latent, rope),
        **hf.attention_bias(config),
        **differences,
    )


def _scale(latent: LatentConfig, rope: RopeConfig | None) -> float:
    """Return the factor of scores. It contains YaRN's magnitude, unlike in other models."""
    scale = float(latent.head**-0.5)
    if rope is None or rope.scaling != "yarn" or not rope.params.get("mscale_all_dim"):
        return scale
    return scale * yarn_mscale(rope.params["factor"], rope.params["mscale_all_dim"]) ** 2
