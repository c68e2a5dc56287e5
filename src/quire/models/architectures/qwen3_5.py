"""Qwen3.5 (text): Qwen3-Next without experts, its products stored one by one."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama, qwen3_next

PARTS = tuple(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "b", "a"))
NAMES = llama.NAMES.but({**qwen3_next.NAMES.layer, "recurrent.in": PARTS})
MTP = "mtp"


def parse(config: hf.HFConfig) -> ModelConfig:
    return qwen3_next.parse_hybrid(config, grouped=False, kv_heads=4)
