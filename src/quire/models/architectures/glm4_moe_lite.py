"""GLM-4.7-Flash: DeepSeek-V3's layers in other sizes."""

from __future__ import annotations

from dataclasses import replace

from quire.core.layers import LatentConfig
from quire.core.model_config import ModelConfig
from quire.models import experts, hf, latent
from quire.models.architectures import deepseek_v2

NAMES = replace(deepseek_v2.NAMES, ignored=rf"{deepseek_v2.NAMES.ignored}|model\.layers\.47\..*")
_DEFAULT = LatentConfig(rank=512, rope_dim=64, nope_dim=192, value_dim=256, q_rank=768)


def parse(config: hf.HFConfig) -> ModelConfig:
    if config.get("mlp_layer_types") is None:
        hf.only(config, "first_k_dense_replace", 1, "Transformers ignores it")
    return latent.parse(
        config,
        _DEFAULT,
        interleaved=hf.boolean(config, "rope_interleave", default=True),
        norm_eps=1e-5,
        bos=0,
        eos=1,
        moe=experts.moe(
            config,
            ("n_routed_experts", "num_local_experts"),
            64,
            experts.grouped_route(config, 4, scale=1.8),
            width=1536,
            shared=1,
            layers=experts.sparse_by_types(
                config, experts.sparse_behind({**config, "first_k_dense_replace": 1}, 1)
            ),
            correction=True,
        ),
    )
