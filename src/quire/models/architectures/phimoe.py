"""Phi-3.5-MoE: Mixtral with LayerNorms, biases, LongRoPE, and experts chosen one after another."""

from __future__ import annotations

from typing import Any

from quire.core.errors import UnsupportedModelError
from quire.core.layers import RouteSpec
from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama, mixtral

NAMES = mixtral.NAMES

_EXPERTS_PER_TOKEN = 2
_TABLES = ("rope_parameters", "rope_scaling")


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "num_experts_per_tok", _EXPERTS_PER_TOKEN, "SparseMixer's two choices")
    head_bias = hf.boolean(config, "lm_head_bias", default=False)
    if head_bias:
        hf.only(config, "tie_word_embeddings", False, "a head with a bias of its own")
    noise = hf.number(config, "router_jitter_noise", default=0.01)
    return llama.decoder(
        {**config, **{name: _renamed(config, name) for name in _TABLES if config.get(name)}},
        norm="layer_norm",
        norm_eps=1e-5,
        theta=1e6,
        bos=1,
        eos=2,
        kv_heads=8,
        **hf.attention_bias(config),
        lm_head_bias=head_bias,
        sliding_window=hf.optional(config, "sliding_window", None),
        moe=experts.moe(
            config,
            ("num_experts", "num_local_experts"),
            16,
            RouteSpec(_EXPERTS_PER_TOKEN, band=2.0 * noise),
        ),
    )


def _renamed(config: hf.HFConfig, name: str) -> dict[str, Any]:
    """Return RoPE's table, with this model's names of the factor of cosines and sines."""
    table = dict(hf.table(config, name))
    kind = table.get("rope_type", table.get("type", "default"))
    short, long = table.pop("short_mscale", None), table.pop("long_mscale", None)
    if kind == "default":
        return table
    if kind != "longrope" or short is None or short != long:
        raise UnsupportedModelError(
            f"config.json: {name} is {kind!r} with short_mscale {short!r} and long_mscale "
            f"{long!r}; Quire computes longrope with the same factor for both.",
            param=name,
        )
    return table | {"attention_factor": short}
