"""Granite 3 with experts, and one that every token passes."""

from __future__ import annotations

from dataclasses import replace

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import granite, granitemoe

NAMES = granitemoe.NAMES.but(
    {
        "mlp.shared.gate_up": ("shared_mlp.input_linear",),
        "mlp.shared.down": ("shared_mlp.output_linear",),
    },
    apart={"mlp.shared.gate_up": ("shared_mlp.gate_proj", "shared_mlp.up_proj")},
)


def parse(config: hf.HFConfig) -> ModelConfig:
    shared = hf.whole(config, "shared_intermediate_size", 0)
    moe = replace(granitemoe.experts_of(config), shared_size=shared)
    return granite.parse({**config, "mlp_bias": False}, moe=moe)
