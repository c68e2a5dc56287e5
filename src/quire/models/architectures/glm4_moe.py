"""GLM-4.5 and 4.6: Llama with biased q, k and v, half of each head rotated, and many experts."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(
    experts.names("mlp") | experts.shared("mlp.shared_experts"), stacked=experts.STACKED
)
MTP = "nextn"


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        norm_eps=1e-5,
        kv_heads=8,
        partial=0.5,
        qkv_bias=hf.boolean(config, "attention_bias", default=False),
        qk_norm="head" if hf.boolean(config, "use_qk_norm", default=False) else None,
        moe=experts.moe(
            config,
            ("n_routed_experts", "num_local_experts"),
            128,
            experts.grouped_route(config, 8),
            width=1408,
            shared=1,
            layers=experts.sparse_behind(config, 1),
            correction=True,
        ),
    )
