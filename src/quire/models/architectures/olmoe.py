"""OLMoE: Llama with experts in the MLP's place, and norms over all of q and of k."""

from __future__ import annotations

from dataclasses import replace

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architecture import Architecture
from quire.models.architectures import llama

NAMES = replace(
    llama.NAMES, layer={**llama.NAMES.layer, **experts.names("mlp")}, stacked=experts.STACKED
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "clip_qkv", None, "q, k and v without bounds")
    bias = hf.boolean(config, "attention_bias", default=False)
    return llama.parse(
        config,
        architecture="olmoe",
        norm_eps=1e-5,
        eos=50279,
        qk_norm="full",
        qkv_bias=bias,
        output_bias=bias,
        moe=experts.moe(
            config,
            ("num_local_experts", "num_experts"),
            64,
            experts.route(config, 8),
        ),
    )


ARCHITECTURE = Architecture(parse, NAMES)
