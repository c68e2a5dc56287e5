"""Trinity (AFMoE): gated attention, a window and RoPE in three of four layers, norms on both sides
of sub-layers, and experts chosen by corrected sigmoids."""

from __future__ import annotations

from quire.core.layers import RouteSpec
from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama, sliding

NAMES = llama.NAMES.but(
    {
        **experts.names("mlp", "router.gate"),
        **experts.shared("mlp.shared_experts"),
        "mlp.router.correction": ("mlp.expert_bias",),
        "attn.gate": ("self_attn.gate_proj",),
        "attn_post_norm": ("post_attention_layernorm",),
        "mlp_norm": ("pre_mlp_layernorm",),
        "mlp_post_norm": ("post_mlp_layernorm",),
    },
    stacked=experts.STACKED,
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "score_func", "sigmoid", "Trinity's")
    hf.only(config, "route_norm", True, "weights of experts that add up to 1")
    slides = sliding.pattern(config, hf.integer(config, "global_attn_every_n_layers", default=4))
    scaled = hf.boolean(config, "mup_enabled", default=False)
    route = RouteSpec(
        hf.integer(config, "num_experts_per_tok", default=6),
        "sigmoid",
        epsilon=1e-20,
        scale=hf.number(config, "route_scale", default=1.0),
    )
    return llama.decoder(
        config,
        head_dim=hf.optional(config, "head_dim", 128),
        norm_eps=1e-5,
        norm_gain="float32",
        norms=("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "norm"),
        qk_norm="head",
        output_gate="own",
        rotated_layers=slides,
        embedding_scale=hf.integer(config, "hidden_size") ** 0.5 if scaled else None,
        **hf.attention_bias(config),
        **sliding.windowed(hf.optional(config, "sliding_window", 1024), slides),
        moe=experts.moe(
            {**config, "n_shared_experts": config.get("num_shared_experts")},
            ("num_experts",),
            64,
            route,
            width=1408,
            shared=2,
            layers=experts.sparse_behind(config, 1, "num_dense_layers"),
            correction=True,
        ),
    )
