"""Bytes that a model needs, from its `ModelConfig` alone; torch-free."""

from __future__ import annotations

from quire.core.config import EngineConfig, ModelConfig
from quire.core.quantization import QUANTIZATIONS, Quantization
from quire.models.parameters import Parameter, parameters

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TABLES = {"embed.weight", "positions.weight"}


def parameter_count(config: ModelConfig) -> int:
    """Weights in all; tied embeddings count once."""
    return sum(parameter.numel for parameter in parameters(config))


def weight_bytes(config: ModelConfig, dtype: str, quantization: str | None = None) -> int:
    """Bytes of the weights once loaded as `dtype`, linear ones quantized if `quantization` says.

    A tied embedding is there once, packed as the output projection that every step reads whole.
    """
    item = DTYPE_BYTES[dtype]
    scheme = None if quantization is None else QUANTIZATIONS[quantization]
    return sum(
        quantized_bytes(parameter, scheme)
        if scheme is not None and _is_linear(config, parameter)
        else parameter.numel * item
        for parameter in parameters(config)
    )


def parameter_bytes(config: EngineConfig, parameter: Parameter) -> int:
    """One parameter's share of `weight_bytes`."""
    if config.quantization is not None and _is_linear(config.model, parameter):
        return quantized_bytes(parameter, QUANTIZATIONS[config.quantization])
    return parameter.numel * DTYPE_BYTES[config.dtype]


def looked_up_bytes(config: ModelConfig, dtype: str) -> int:
    """Of the weights, the tables of which a step reads only its own rows: learned positions, and
    the token embedding where it does not double as the output projection."""
    tables = {"positions.weight"} if config.tie_word_embeddings else _TABLES
    return DTYPE_BYTES[dtype] * sum(p.numel for p in parameters(config) if p.name in tables)


def quantized_bytes(parameter: Parameter, scheme: Quantization) -> int:
    """A linear weight as it is packed, rows padded to blocks of 32, columns to whole groups.

    int8: a byte an element, a float32 scale and an int32 sum a row. int4: half a byte an element,
    two float16 a group, a float32 a row.
    """
    rows, columns = parameter.shape
    gated = parameter.name.endswith("gate_up.weight")  # 16 rows of gate and of up make a block
    rows = 2 * _round_up(rows // 2, 16) if gated else _round_up(rows, 32)
    head = parameter.name in {"embed.weight", "lm_head.weight"}
    kind = scheme.head if head else scheme.kind
    if kind != "u4":
        return rows * (_round_up(columns, 64 if kind == "s8" else 32) + 8)
    groups = -(-columns // scheme.group)
    return rows * (groups * (scheme.group // 2 + 4) + 4)


def _round_up(a: int, b: int) -> int:
    return -(-a // b) * b


def _is_linear(config: ModelConfig, parameter: Parameter) -> bool:
    if parameter.name == "embed.weight":
        return config.tie_word_embeddings
    return len(parameter.shape) == 2 and parameter.name != "positions.weight"


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str, scales: bool = False) -> int:
    """Bytes of KV cache that one token takes, over all layers.

    With `scales`, and in int8 always, a head has a bfloat16 scale beside its head_dim bytes:
    against bfloat16, 2 · head_dim / (head_dim + 2) times the tokens fit, which is 1.94 at 64 and
    1.97 at 128.
    """
    head = config.head_dim * (DTYPE_BYTES.get(kv_dtype) or 1)
    if scales or kv_dtype == "int8":
        head += 2
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head
