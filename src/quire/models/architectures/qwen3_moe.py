"""Qwen3-MoE: Qwen3 with experts in the MLP's place."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(experts.names("mlp"), stacked=experts.STACKED)
MTP = "mtp"


def parse(config: hf.HFConfig) -> ModelConfig:
    slides = hf.boolean(config, "use_sliding_window", default=False)
    return llama.decoder(
        config,
        kv_heads=4,
        qk_norm="head",
        **hf.attention_bias(config),
        sliding_window=hf.optional(config, "sliding_window", 4096) if slides else None,
        moe=experts.moe(
            config,
            ("num_experts", "num_local_experts"),
            128,
            experts.route(config, 8),
            width=768,
            layers=experts.sparse_layers(config),
        ),
    )
