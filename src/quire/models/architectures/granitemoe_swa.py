"""Granite 3 with experts, and the windows, sinks and bases of RoPE of `granite_swa`."""

from __future__ import annotations

from quire.core.model_config import ModelConfig
from quire.models import experts, hf
from quire.models.architectures import granite_swa, granitemoeshared

NAMES = granitemoeshared.NAMES.but(
    granite_swa.SINKS | {"mlp.router": ("block_sparse_moe.router",)},
    stacked=experts.stacked("block_sparse_moe.experts"),
)


def parse(config: hf.HFConfig) -> ModelConfig:
    return granite_swa.windowed(config, granitemoeshared.parse(config))
