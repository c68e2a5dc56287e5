"""MiniMax-M2: Mixtral with norms over all of q and of k, and DeepSeek-V3's choice of experts."""

from __future__ import annotations

from quire.core.layers import RouteSpec
from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import llama, mixtral

NAMES = mixtral.NAMES.but(
    {"mlp.router.correction": ("block_sparse_moe.e_score_correction_bias",)},
    ignored=rf"{mixtral.NAMES.ignored}|model\.mtp\..*",
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "scoring_func", "sigmoid", "MiniMax-M2's")
    hf.only(config, "use_routing_bias", True, "corrected choices of experts")
    hf.only(config, "use_qk_norm", True, "norms of q and k")
    hf.only(config, "qk_norm_type", "per_layer", "norms over all heads")
    hf.only(config, "shared_intermediate_size", 0, "experts that are chosen")
    head_dim = hf.optional(config, "head_dim", 128)
    if config.get("rotary_dim") is not None and config.get("partial_rotary_factor") is None:
        width = head_dim or hf.integer(config, "hidden_size") // hf.integer(
            config, "num_attention_heads"
        )
        part = hf.integer(config, "rotary_dim") / width
        config = {**config, "partial_rotary_factor": part}
    return llama.decoder(
        config,
        head_dim=head_dim,
        kv_heads=8,
        theta=5e6,
        partial=1.0,
        bos=200_034,
        eos=200_020,
        qk_norm="full",
        moe=experts.moe(
            config,
            ("num_experts", "num_local_experts"),
            256,
            RouteSpec(hf.integer(config, "num_experts_per_tok", default=8), "sigmoid"),
            correction=True,
        ),
    )
