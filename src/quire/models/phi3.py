"""Phi-3 and Phi-4-mini: Llama with q, k and v in one matrix, gate and up in one, and LongRoPE."""

from __future__ import annotations

from dataclasses import replace

from quire.core.config import ModelConfig
from quire.models import hf, llama, mistral
from quire.models.architecture import Architecture

NAMES = replace(
    llama.NAMES,
    layer={
        **llama.NAMES.layer,
        "attn.qkv": ("self_attn.qkv_proj",),
        "mlp.gate_up": ("mlp.gate_up_proj",),
    },
)

_TRAINED_LENGTH = 4096
"""Where the config does not say; Transformers' default."""


def parse(config: hf.HFConfig) -> ModelConfig:
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("su", "yarn"):  # how the first of these models called it
        kind = "longrope"
    if kind == "longrope":
        rope.setdefault(
            "original_max_position_embeddings",
            hf.integer(config, "original_max_position_embeddings", default=_TRAINED_LENGTH),
        )
    rope = {key: value for key, value in rope.items() if key != "type"} | {
        "rope_type": kind or "default"
    }
    return mistral.parse({**config, "rope_parameters": rope}, architecture="phi3")


ARCHITECTURE = Architecture(parse, NAMES)
