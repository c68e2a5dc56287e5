"""FlexOlmo: OLMo 2 with experts in the MLP's place."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import olmo2

NAMES = olmo2.NAMES.but(experts.names("mlp"), stacked=experts.STACKED)


def parse(config: hf.HFConfig) -> ModelConfig:
    count = ("num_local_experts", "num_experts")
    return olmo2.decoder(
        config,
        norm_eps=1e-6,
        theta=500_000.0,
        eos=100_257,
        moe=experts.moe(config, count, 7, experts.route(config, 5)),
    )
