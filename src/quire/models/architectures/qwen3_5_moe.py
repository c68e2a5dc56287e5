"""Qwen3.5-MoE (text): Qwen3.5 with Qwen3-Next's experts in every layer."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import qwen3_5, qwen3_next

NAMES = qwen3_next.NAMES.but(
    {"recurrent.in": qwen3_5.PARTS},
    apart={"recurrent.in": (*qwen3_5.PARTS[:2], "linear_attn.in_proj_ba")},  # Qwen3-Next in GGUF
)
MTP = "mtp"


def parse(config: hf.HFConfig) -> ModelConfig:
    # Every layer is sparse: there is no dense feed-forward, and no field of its width.
    config = {**config, "norm_topk_prob": True, "intermediate_size": 1}
    return qwen3_next.parse_hybrid(
        config, grouped=False, kv_heads=2, **qwen3_next.sparse(config, (256, 8))
    )
