"""Bytes that a model needs, from its `ModelConfig` alone; torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.config import EngineConfig, ModelConfig
from quire.core.quantization import QUANTIZATIONS, Form, Quantization
from quire.models.packed_bytes import packed_bytes, padded_rows, round_up
from quire.models.parameters import Parameter, parameters

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CODE_BITS = {"u4": 4, "u6": 6}  # of kinds in groups that weights are rounded to
_TABLES = {"embed.weight", "positions.weight", "token_types.weight"}


def parameter_count(config: ModelConfig) -> int:
    """Weights in all; tied embeddings count once."""
    return sum(parameter.numel for parameter in parameters(config))


def loaded_bytes(config: EngineConfig) -> int:
    """Bytes of an engine's weights once they are loaded."""
    return sum(parameter_bytes(config, parameter) for parameter in parameters(config.model))


def parameter_bytes(config: EngineConfig, parameter: Parameter) -> int:
    """One parameter's share of `loaded_bytes`; the reference ops have only dense weights."""
    forms = {} if config.ops == "reference" else config.weight_forms
    return _parameter_bytes(config.model, config.dtype, parameter, config.packing, forms)


def weight_bytes(
    config: ModelConfig,
    dtype: str,
    packing: str | None = None,
    forms: Mapping[str, Sequence[Form | None]] | None = None,
) -> int:
    """Bytes of the weights once loaded as `dtype`, linear ones quantized if `packing` says, or in
    the forms of `models.forms`.

    A tied embedding is there once, packed as the output projection that every step reads whole.
    """
    return sum(
        _parameter_bytes(config, dtype, parameter, packing, forms or {})
        for parameter in parameters(config)
    )


def _parameter_bytes(
    config: ModelConfig,
    dtype: str,
    parameter: Parameter,
    packing: str | None,
    forms: Mapping[str, Sequence[Form | None]],
) -> int:
    item = DTYPE_BYTES[dtype]
    if config.norm_plus_one and parameter.name.endswith("norm.weight"):
        return parameter.numel * DTYPE_BYTES["float32"]
    if parameter.name in forms:
        return packed_bytes(parameter, forms[parameter.name], item)
    if packing is not None and _is_linear(config, parameter):
        return quantized_bytes(parameter, QUANTIZATIONS[packing])
    return parameter.numel * item


def looked_up_bytes(config: ModelConfig, dtype: str) -> int:
    """Of the weights, the tables of which a step reads only its own rows: learned positions, and
    the token embedding where it does not double as the output projection."""
    tables = _TABLES - {"embed.weight"} if config.tie_word_embeddings else _TABLES
    return DTYPE_BYTES[dtype] * sum(p.numel for p in parameters(config) if p.name in tables)


def quantized_bytes(parameter: Parameter, scheme: Quantization) -> int:
    """A linear weight as it is packed, rows padded to blocks of 32, columns to whole groups.

    int8: a byte an element, a float32 scale and an int32 sum a row. Codes of fewer bits: two
    float16 a group, a float32 a row.
    """
    rows, columns = padded_rows(parameter), parameter.shape[1]
    head = parameter.name in {"embed.weight", "lm_head.weight"}
    kind = scheme.head if head else scheme.kind
    if kind not in _CODE_BITS:
        return rows * (round_up(columns, 64 if kind == "s8" else 32) + 8)
    groups = -(-columns // scheme.group)
    return rows * (groups * (scheme.group * _CODE_BITS[kind] // 8 + 4) + 4)


def _is_linear(config: ModelConfig, parameter: Parameter) -> bool:
    if parameter.name == "embed.weight":
        return config.tie_word_embeddings
    return len(parameter.shape) == 2 and parameter.name not in _TABLES


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str, scales: bool = False) -> int:
    """Bytes of KV cache that one token takes, over all layers that keep theirs.

    With `scales`, and in int8 always, a head has a bfloat16 scale beside its head_dim bytes:
    against bfloat16, 2 · head_dim / (head_dim + 2) times the tokens fit, which is 1.94 at 64 and
    1.97 at 128.
    """
    head = config.head_dim * (DTYPE_BYTES.get(kv_dtype) or 1)
    if scales or kv_dtype == "int8":
        head += 2
    return 2 * config.kv_layers * config.num_key_value_heads * head
