"""LFM2-MoE: LFM2 with experts in most layers, chosen by sigmoids and a bias."""

from __future__ import annotations

from quire.core.layers import RouteSpec
from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import lfm2

BLOCK = "feed_forward"
NAMES = lfm2.NAMES.but(
    {
        **experts.names(BLOCK, parts=("w1", "w3", "w2")),
        "mlp.router.correction": (f"{BLOCK}.expert_bias",),
    },
    stacked=experts.stacked(f"{BLOCK}.experts"),
)


def parse(config: hf.HFConfig) -> ModelConfig:
    route = RouteSpec(
        hf.integer(config, "num_experts_per_tok", default=4),
        "sigmoid",
        renormalize=hf.boolean(config, "norm_topk_prob", default=True),
        epsilon=1e-6,
        scale=hf.number(config, "routed_scaling_factor", default=1.0),
    )
    moe = experts.moe(
        config,
        ("num_experts",),
        32,
        route,
        width=1792,
        correction=hf.boolean(config, "use_expert_bias", default=True),
        layers=experts.sparse_behind(config, 2, "num_dense_layers"),
    )
    width = hf.integer(config, "intermediate_size", default=7168)
    return lfm2.parse(config, intermediate_size=width, moe=moe)
