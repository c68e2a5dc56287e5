"""BERT: an encoder with learned positions, token types, biases, and a norm behind each sum."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames


def names(prefix: str, dense: str, out: str) -> WeightNames:
    """Return a sister architecture's weight names, from its encoder's name and its classifier's two
    layers.

    What only other tasks need (the pooler, the head that fills masks) is left unread.
    """
    return WeightNames(
        top={
            "embed": f"{prefix}.embeddings.word_embeddings",
            "positions": f"{prefix}.embeddings.position_embeddings",
            "token_types": f"{prefix}.embeddings.token_type_embeddings",
            "embed_norm": f"{prefix}.embeddings.LayerNorm",
            "head.dense": f"{prefix}.{dense}",
            "head.out": f"{prefix}.{out}",
        },
        layer={
            "attn.qkv": tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
            "attn.out": ("attention.output.dense",),
            "attn_sum_norm": ("attention.output.LayerNorm",),
            "mlp.up": ("intermediate.dense",),
            "mlp.down": ("output.dense",),
            "mlp_sum_norm": ("output.LayerNorm",),
        },
        layer_prefix=f"{prefix}.encoder.layer.{{}}.",
        base_prefix=f"{prefix}.",
        ignored=rf"({prefix}\.)?(pooler|classifier|cls|embeddings\.(position|token_type)_ids)\b.*",
    )


def parse(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """Return the `ModelConfig`; `differences` are a sister architecture's fields."""
    hf.only(config, "position_embedding_type", "absolute", "positions from a table")
    hf.only(config, "is_decoder", False, "attention both ways")
    hf.only(config, "add_cross_attention", False, "an encoder alone")
    fields: dict[str, Any] = {
        **hf.shape(config),
        "norm": "layer_norm",
        "norm_eps": hf.number(config, "layer_norm_eps", default=1e-12),
        "activation": hf.plain_activation(config, "hidden_act", "gelu"),
        "learned_positions_offset": 0,
        **hf.biases(True),
        "norms": ("embed_norm", "attn_sum_norm", "mlp_sum_norm"),
        "causal": False,
        "token_types": hf.integer(config, "type_vocab_size", default=2),
        "lm_head": False,
        "classifier_activation": "tanh",
    }
    return ModelConfig(**(fields | differences))


NAMES = names("bert", "pooler.dense", "classifier")
