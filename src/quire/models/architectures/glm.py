"""GLM-4 of 2024 and GLM-Edge: GLM-4 without the norms behind attention and feed-forward."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import glm4, llama

NAMES = llama.NAMES.but({"mlp.gate_up": ("mlp.gate_up_proj",)})


def parse(config: hf.HFConfig) -> ModelConfig:
    width = hf.optional(config, "head_dim", 128)
    norms = ("attn_norm", "mlp_norm", "norm")
    return glm4.decoder(config, head_dim=width, norms=norms)
