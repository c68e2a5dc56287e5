"""DeepSeek-V3 and R1: latent attention, and experts chosen by corrected sigmoids."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf, latent
from quire.models.architectures import deepseek_v2

NAMES = deepseek_v2.NAMES
MTP = "nextn"


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "moe_layer_freq", 1, "experts in each layer behind the first ones")
    hf.only(config, "scoring_func", "sigmoid", "DeepSeek-V3's")
    hf.only(config, "topk_method", "noaux_tc", "DeepSeek-V3's")
    return latent.parse(
        config,
        deepseek_v2.DEFAULT,
        interleaved=hf.flag(config, "rope_interleave", default=True),
        bos=0,
        eos=1,
        moe=experts.moe(
            config,
            ("n_routed_experts", "num_local_experts"),
            256,
            experts.grouped_route(config, 8, (8, 4), 2.5),
            width=2048,
            shared=1,
            layers=experts.sparse_behind(config, 3),
            correction=True,
        ),
    )
