"""Mistral 4 (Mistral Small 4): latent attention whose queries grow with their position, and experts
chosen by a softmax."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.core.layers import LatentConfig, RouteSpec
from quire.core.model_config import ModelConfig
from quire.models import experts, hf, latent
from quire.models.architectures import deepseek_v2, ministral3

NAMES = deepseek_v2.NAMES
_DEFAULT = LatentConfig(rank=256, rope_dim=64, nope_dim=64, value_dim=128, q_rank=1024)
_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""Where the config does not say."""


def parse(config: hf.HFConfig) -> ModelConfig:
    tables = [hf.table(config, name) for name in ("rope_parameters", "rope_scaling")]
    rope = next((table for table in tables if table), _ROPE)
    # The part of q and k that is rotated, which the widths of heads say, too.
    rope = {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
    config = {**config, "rope_scaling": None, "rope_parameters": rope}
    groups, chosen = experts.groups(config, (1, 1))
    route = RouteSpec(
        hf.integer(config, "num_experts_per_tok", default=4),
        renormalize=hf.flag(config, "norm_topk_prob", default=True),
        epsilon=1e-20,
        num_groups=groups,
        top_groups=chosen,
        scale=hf.number(config, "routed_scaling_factor", default=1.0),
    )
    model = latent.parse(
        config,
        _DEFAULT,
        interleaved=hf.flag(config, "rope_interleave", default=True),
        bos=1,
        eos=2,
        moe=experts.moe(
            config,
            ("n_routed_experts", "num_local_experts"),
            128,
            route,
            width=2048,
            shared=1,
            layers=experts.sparse_behind(config, 0),
        ),
    )
    assert model.rope is not None
    return replace(model, query_growth=ministral3.growth(config, model.rope))
