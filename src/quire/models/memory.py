"""Bytes that a model needs, from its `ModelConfig` alone; torch-free."""

from __future__ import annotations

from quire.core.config import ModelConfig
from quire.models.parameters import parameters

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def parameter_count(config: ModelConfig) -> int:
    """Weights in all; tied embeddings count once."""
    return sum(parameter.numel for parameter in parameters(config))


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of the weights once loaded as `dtype`."""
    return parameter_count(config) * DTYPE_BYTES[dtype]


def tied_copy_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of the second, packed copy of a tied embedding: rows are looked up in one, the
    output projection reads the other. None of it where nothing is tied."""
    if not config.tie_word_embeddings:
        return 0
    return config.vocab_size * config.hidden_size * DTYPE_BYTES[dtype]


def kv_bytes_per_token(config: ModelConfig, dtype: str) -> int:
    """Bytes of KV cache that one token takes, over all layers."""
    width = config.num_key_value_heads * config.head_dim
    return 2 * config.num_hidden_layers * width * DTYPE_BYTES[dtype]
