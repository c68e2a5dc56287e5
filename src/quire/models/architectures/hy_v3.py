"""Hy3: Qwen3's attention, and experts chosen by corrected sigmoids, and one for all tokens."""

from __future__ import annotations

from quire.core.layers import RouteSpec
from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    {
        **experts.names("mlp", "router.gate"),
        **experts.shared("mlp.shared_experts"),
        "mlp.router.correction": ("mlp.expert_bias",),
    },
    stacked=experts.STACKED,
    apart=experts.shared("mlp.shared_mlp"),  # as published
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "mlp_bias", False, "feed-forwards without biases")
    layers = hf.integer(config, "num_hidden_layers")
    route = RouteSpec(
        hf.integer(config, "num_experts_per_tok", default=8),
        "sigmoid",
        epsilon=1e-20,
        scale=hf.number(config, "router_scaling_factor", default=2.826),
    )
    return llama.decoder(
        config,
        head_dim=128,
        kv_heads=8,
        norm_eps=1e-5,
        theta=11_158_840.0,
        qk_norm="head",
        **hf.attention_bias(config),
        moe=experts.moe(
            {**config, "n_shared_experts": config.get("num_shared_experts")},
            ("num_experts", "num_local_experts"),
            192,
            route,
            width=1536,
            shared=1,
            layers=experts.sparse_by_types(config, tuple(i > 0 for i in range(layers))),
            correction=True,
        ),
    )
