"""Gemma: Llama with a GELU gate, norms by 1 + weight, scaled embeddings, heads of any width."""

from __future__ import annotations

from typing import Any

from quire.core.config import ModelConfig
from quire.core.errors import UnsupportedModelError
from quire.models import hf, llama
from quire.models.architecture import Architecture

DEFAULT_HEAD_DIM = 256
_TANH_GELUS = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu")
"""Gemma's first configs say "gelu", and mean its tanh approximation."""


def parse(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """config.json → `ModelConfig`; `differences` are a later Gemma's fields."""
    hf.only(config, "use_bidirectional_attention", False, "causal attention")
    activation = config.get("hidden_activation") or config.get("hidden_act")
    if activation is not None and activation not in _TANH_GELUS:
        raise UnsupportedModelError(
            f"config.json: hidden_activation is {activation!r}; Gemma gates with GELU's tanh "
            "approximation.",
            param="hidden_activation",
        )
    bias = hf.boolean(config, "attention_bias", default=False)
    fields: dict[str, Any] = {
        "architecture": "gemma",
        "head_dim": DEFAULT_HEAD_DIM,
        "activation": "gelu_tanh",
        "norm_plus_one": True,
        "embedding_scale": hf.integer(config, "hidden_size") ** 0.5,
        "qkv_bias": bias,
        "output_bias": bias,
        "tie_word_embeddings": hf.boolean(config, "tie_word_embeddings", default=True),
    }
    return llama.parse(config, **(fields | differences))


ARCHITECTURE = Architecture(parse, llama.NAMES)
