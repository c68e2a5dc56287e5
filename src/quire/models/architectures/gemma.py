"""Gemma: Llama with a GELU gate, norms by 1 + weight, scaled embeddings, heads of any width."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architectures import llama

DEFAULT_HEAD_DIM = 256


def parse(
    config: hf.HFConfig,
    *,
    activation_field: str = "hidden_act",
    kv_heads: int = 16,
    **differences: Any,
) -> ModelConfig:
    """Return the `ModelConfig` of a config.json.

    Args:
        activation_field: the one of two fields that Transformers reads.
        kv_heads: what an absent `num_key_value_heads` means.
        differences: a later Gemma's fields.
    """
    if "causal" not in differences:
        hf.only(config, "use_bidirectional_attention", False, "causal attention")
    activation = "gelu_tanh"
    for field in ("hidden_act", "hidden_activation"):
        found = hf.activation(config, field, "gelu_pytorch_tanh")
        if found not in ("gelu", "gelu_tanh"):
            raise hf.unsupported(field, config[field], "Gemma gates with GELU")
        if field == activation_field and field == "hidden_activation":
            activation = found  # "gelu" in hidden_act means the approximation
    fields: dict[str, Any] = {
        "head_dim": DEFAULT_HEAD_DIM,
        "kv_heads": kv_heads,
        "bos": 2,
        "eos": 1,
        "activation": hf.GATED[activation],
        "norm_gain": "plus_one",
        "embedding_scale": hf.integer(config, "hidden_size") ** 0.5,
        "embedding_scale_rounded": True,
        **hf.attention_bias(config),
        "tie_word_embeddings": hf.boolean(config, "tie_word_embeddings", default=True),
    }
    return llama.decoder(config, **(fields | differences))
