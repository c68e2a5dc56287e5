"""Granite 3 with experts: Granite's factors, and a softmax of the chosen experts."""

from __future__ import annotations

from quire.core.layers import MoEConfig
from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import granite, llama
from quire.models.weights.stacks import Stacked

NAMES = llama.NAMES.but(
    experts.names("block_sparse_moe", "router.layer"),
    stacked={
        "mlp.experts.gate_up": Stacked("block_sparse_moe.input_linear"),
        "mlp.experts.down": Stacked("block_sparse_moe.output_linear"),
    },
)


def parse(config: hf.HFConfig) -> ModelConfig:
    return granite.parse({**config, "mlp_bias": False}, moe=experts_of(config))


def experts_of(config: hf.HFConfig) -> MoEConfig:
    route = experts.route(config, 2, renormalize=True)
    return experts.moe(config, ("num_experts", "num_local_experts"), 8, route)
