"""GPT-2: learned positions, LayerNorm, biases everywhere, a plain GELU MLP, tied embeddings."""

from __future__ import annotations

from typing import Any

from quire.core.model_config import ModelConfig
from quire.models import hf
from quire.models.architecture import WeightNames

_END = 50256
"""The token that absent fields name as begin and end of a text."""

NAMES = WeightNames(
    top={
        "embed": "transformer.wte",
        "positions": "transformer.wpe",
        "norm": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    layer={
        "attn_norm": ("ln_1",),
        "attn.qkv": ("attn.c_attn",),
        "attn.out": ("attn.c_proj",),
        "mlp_norm": ("ln_2",),
        "mlp.up": ("mlp.c_fc",),
        "mlp.down": ("mlp.c_proj",),
    },
    layer_prefix="transformer.h.{}.",
    base_prefix="transformer.",
    transposed=frozenset({"attn.qkv", "attn.out", "mlp.up", "mlp.down"}),
    # The causal mask, which old files carry as a buffer.
    ignored=r".*\.attn\.(masked_)?bias",
)


def parse(config: hf.HFConfig, **differences: Any) -> ModelConfig:
    """Return the `ModelConfig`; `differences` are a relative's fields."""
    hf.only(config, "per_layer_config", None, "layers that are alike")
    hf.only(config, "scale_attn_weights", True, "scores divided by the root of head_dim")
    hf.only(config, "scale_attn_by_inverse_layer_idx", False, "one scale for every layer")
    hf.only(config, "add_cross_attention", False, "a decoder alone")
    hidden_size = hf.integer(config, "n_embd", "hidden_size")
    query = hf.integer(config, "n_head", "num_attention_heads")
    heads, _, head_dim = hf.heads({"num_attention_heads": query}, hidden_size, None)
    fields: dict[str, Any] = {
        "architecture": config["model_type"],
        "vocab_size": hf.integer(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": hf.integer(config, "n_inner", default=4 * hidden_size),
        "num_hidden_layers": hf.integer(config, "n_layer", "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "max_position_embeddings": hf.integer(config, "n_positions", "max_position_embeddings"),
        "dtype": hf.dtype(config),
        "norm": "layer_norm",
        "norm_eps": hf.number(config, "layer_norm_epsilon", default=1e-5),
        "activation": hf.plain_activation(config, "activation_function", "gelu_new"),
        "learned_positions_offset": 0,
        **hf.biases(True),
        "tie_word_embeddings": hf.boolean(config, "tie_word_embeddings", default=True),
        "bos_token_id": hf.bos_token_id(config, _END),
        "eos_token_ids": hf.token_ids(config, "eos_token_id", _END),
    }
    return ModelConfig(**(fields | differences))
