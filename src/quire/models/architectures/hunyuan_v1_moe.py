"""HunYuan with experts (A13B), and one that every token passes."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import hunyuan_v1_dense

NAMES = hunyuan_v1_dense.NAMES.but(
    experts.names("mlp", "gate.wg") | experts.shared("mlp.shared_mlp"), stacked=experts.STACKED
)


def parse(config: hf.HFConfig) -> ModelConfig:
    config = {**config, **_common(config, "num_experts", "moe_topk", "num_experts_per_tok")}
    top_k = hf.integer(config, "num_experts_per_tok", "moe_topk", default=1)
    moe = experts.moe(
        config,
        ("num_local_experts", "num_experts"),
        1,
        experts.route({"num_experts_per_tok": top_k}, 1, renormalize=True),
        shared_size=hf.integer(config, "intermediate_size"),
    )
    return hunyuan_v1_dense.parse(config, moe=moe)


def _common(config: hf.HFConfig, *names: str) -> dict[str, Any]:
    """Return the numbers that some configs have once per layer, where all are the same."""
    lists = {name: config[name] for name in names if isinstance(config.get(name), list)}
    for name, found in lists.items():
        if found != found[:1] * hf.integer(config, "num_hidden_layers"):
            raise hf.unsupported(name, found, "Quire has one number for all layers")
    return {name: found[0] for name, found in lists.items()}
