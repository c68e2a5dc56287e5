"""DeepSeek-V2: latent attention, and experts chosen by a softmax, among the best groups of them."""

from __future__ import annotations

from quire.core.layers import LatentConfig, RouteSpec
from quire.core.model_config import ModelConfig
from quire.models import experts, hf, latent

NAMES = latent.NAMES.but(
    experts.names("mlp") | experts.shared("mlp.shared_experts"), stacked=experts.STACKED
)
DEFAULT = LatentConfig(rank=512, rope_dim=64, nope_dim=128, value_dim=128, q_rank=1536)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "mlp_bias", False, "feed-forwards without biases")
    hf.only(config, "moe_layer_freq", 1, "experts in each layer behind the first ones")
    return latent.parse(
        config,
        DEFAULT,
        interleaved=True,
        bos=1,
        eos=2,
        moe=experts.moe(
            config,
            ("n_routed_experts", "num_experts"),
            64,
            _route(config),
            width=1407,
            shared=2,
            layers=experts.sparse_behind(config, 0),
        ),
    )


def _route(config: hf.HFConfig) -> RouteSpec:
    hf.only(config, "norm_topk_prob", False, "Transformers ignores it")
    hf.only(config, "scoring_func", "softmax", "DeepSeek-V2's")
    method = config.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise hf.unsupported("topk_method", method, "known: greedy, group_limited_greedy")
    count, chosen = experts.groups(config, (None, None)) if method != "greedy" else (1, 1)
    return RouteSpec(
        hf.integer(config, "num_experts_per_tok"),
        renormalize=False,
        num_groups=count,
        top_groups=chosen,
        group_score="max",
        scale=hf.number(config, "routed_scaling_factor", default=1.0),
    )
