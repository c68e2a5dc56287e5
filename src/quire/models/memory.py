"""Bytes that a model needs, from its `ModelConfig` alone; torch-free."""

from __future__ import annotations

from quire.core.config import ModelConfig
from quire.models.parameters import Parameter, parameters

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def parameter_count(config: ModelConfig) -> int:
    """Weights in all; tied embeddings count once."""
    return sum(parameter.numel for parameter in parameters(config))


def weight_bytes(config: ModelConfig, dtype: str, quantization: str | None = None) -> int:
    """Bytes of the weights once loaded as `dtype`, linear ones quantized if `quantization` says.

    A tied embedding is there once, packed as the output projection that every step reads whole.
    """
    item = DTYPE_BYTES[dtype]
    return sum(
        int8_bytes(*parameter.shape)
        if quantization is not None and _is_linear(config, parameter)
        else parameter.numel * item
        for parameter in parameters(config)
    )


def int8_bytes(rows: int, columns: int) -> int:
    """A quantized weight: a byte an element, a float32 scale and an int32 sum a row."""
    return rows * (columns + 8)


def _is_linear(config: ModelConfig, parameter: Parameter) -> bool:
    if parameter.name == "embed.weight":
        return config.tie_word_embeddings
    return len(parameter.shape) == 2 and parameter.name != "positions.weight"


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str) -> int:
    """Bytes of KV cache that one token takes, over all layers.

    A head of an int8 cache has a bfloat16 scale beside its head_dim bytes: against bfloat16,
    2 · head_dim / (head_dim + 2) times the tokens fit, which is 1.94 at 64 and 1.97 at 128.
    """
    head = config.head_dim + 2 if kv_dtype == "int8" else config.head_dim * DTYPE_BYTES[kv_dtype]
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head
