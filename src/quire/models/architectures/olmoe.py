"""OLMoE: Llama with experts in the MLP's place, and norms over all of q and of k."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(experts.names("mlp"), stacked=experts.STACKED)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "clip_qkv", None, "q, k and v without bounds")
    return llama.decoder(
        config,
        norm_eps=1e-5,
        eos=50279,
        qk_norm="full",
        **hf.attention_bias(config),
        moe=experts.moe(config, ("num_local_experts", "num_experts"), 64, experts.route(config, 8)),
    )
