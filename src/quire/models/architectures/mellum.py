"""Mellum 2: Qwen3-MoE with windows and a RoPE of their own in some layers."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models import rope as ropes
from quire.models.architectures import llama, qwen3_moe, sliding

NAMES = qwen3_moe.NAMES.but({}, ignored=rf"{qwen3_moe.NAMES.ignored}|mtp\..*")


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "rope_scaling", None, "RoPE by rope_parameters")
    layers = hf.integer(config, "num_hidden_layers")
    dim = hf.integer(config, "head_dim", default=128)
    thetas = {ropes.FULL: ("", 500_000.0), ropes.SLIDING: ("", 10_000.0)}
    longest = hf.integer(config, "max_position_embeddings")
    rope, local = ropes.ropes(config, dim, longest, thetas=thetas, scaled=())
    slides = sliding.pattern(config, None)
    route = experts.route(config, 8, renormalize=hf.boolean(config, "norm_topk_prob", default=True))
    return llama.decoder(
        config,
        head_dim=dim,
        kv_heads=4,
        rope=rope,
        local_rope=local,
        qk_norm="head",
        **hf.attention_bias(config),
        **sliding.windowed(hf.optional(config, "sliding_window", 1024), slides),
        moe=experts.moe(
            config,
            ("num_experts", "num_local_experts"),
            64,
            route,
            width=896,
            layers=experts.sparse_by_types(config, (True,) * layers),
        ),
    )
