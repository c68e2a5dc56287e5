"""Phi-3 and Phi-4-mini: Llama with q, k and v in one matrix, gate and up in one, and LongRoPE."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models import rope as ropes
from quire.models.architectures import llama

NAMES = llama.NAMES.but({"attn.qkv": ("self_attn.qkv_proj",), "mlp.gate_up": ("mlp.gate_up_proj",)})

_TABLES = ("rope_parameters", "rope_scaling")


def parse(config: hf.HFConfig) -> ModelConfig:
    hidden, max_len = (hf.integer(config, n) for n in ("hidden_size", "max_position_embeddings"))
    given = hf.integer(config, "head_dim") if config.get("head_dim") is not None else None
    _, _, head_dim = hf.heads(config, hidden, given)
    renamed = {**config, **{name: _renamed(config, name) for name in _TABLES}}
    return llama.decoder(
        config,
        norm_eps=1e-5,
        bos=1,
        eos=32000,
        rope=ropes.rope(renamed, head_dim, max_len, partial=1.0, trained=4096),
        sliding_window=hf.optional(config, "sliding_window", None),
    )


def _renamed(config: hf.HFConfig, name: str) -> dict[str, Any]:
    """RoPE's table, in which the first of these models said "su" or "yarn" for LongRoPE."""
    return {
        key: "longrope" if key in ("type", "rope_type") and value in ("su", "yarn") else value
        for key, value in hf.table(config, name).items()
    }
