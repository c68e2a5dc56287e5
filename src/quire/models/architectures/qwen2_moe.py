"""Qwen2-MoE: Qwen2 with experts in the MLP's place, and a gated one that every token passes."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama, sliding

NAMES = llama.NAMES.but(
    {
        **experts.names("mlp"),
        **experts.shared("mlp.shared_expert"),
        "mlp.shared_gate": ("mlp.shared_expert_gate",),
    },
    stacked=experts.STACKED,
)


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        kv_heads=16,
        qkv_bias=hf.boolean(config, "qkv_bias", default=True),
        moe=experts.moe(
            config,
            ("num_experts",),
            60,
            experts.route(config, 4),
            width=1408,
            layers=experts.sparse_layers(config),
            shared_size=hf.integer(config, "shared_expert_intermediate_size", default=5632),
            shared_gate=True,
        ),
        **sliding.upper_layers(config, lambda layer, upper: layer % 2 == 0 and layer < upper),
    )
