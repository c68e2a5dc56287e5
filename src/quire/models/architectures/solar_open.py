"""Solar Open: GLM-4.5 with experts in all layers, and whole heads rotated."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import glm4_moe, llama

NAMES = glm4_moe.NAMES


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "use_qk_norm", False, "q and k without norms")
    hf.only(config, "first_k_dense_replace", 0, "experts in all layers")
    width = hf.integer(config, "moe_intermediate_size", default=1280)
    return llama.decoder(
        {**config, "intermediate_size": width},
        head_dim=hf.optional(config, "head_dim", 128),
        kv_heads=8,
        norm_eps=1e-5,
        theta=1e6,
        qkv_bias=hf.boolean(config, "attention_bias", default=False),
        moe=experts.moe(
            config,
            ("n_routed_experts", "num_local_experts"),
            128,
            experts.grouped_route(config, 8),
            width=1280,
            shared=1,
            correction=True,
        ),
    )
