"""Mixtral: Mistral with experts in the MLP's place."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama

NAMES = llama.NAMES.but(experts.names("block_sparse_moe", parts=("w1", "w3", "w2")))


def parse(config: hf.HFConfig) -> ModelConfig:
    return llama.decoder(
        config,
        norm_eps=1e-5,
        kv_heads=8,
        theta=1e6,
        bos=1,
        eos=2,
        sliding_window=hf.optional(config, "sliding_window", None),
        moe=experts.moe(
            config,
            ("num_experts", "num_local_experts"),
            8,
            experts.route(config, 2, renormalize=True),
        ),
    )
