"""Bytes that a model needs, from its `ModelConfig` alone; torch-free."""

from __future__ import annotations

from math import prod

from quire.core.config import EngineConfig
from quire.core.model_config import ModelConfig
from quire.core.quantization import DECODED_ROWS, QUANTIZATIONS, Quantization
from quire.models.layout import head_name, parameters
from quire.models.parameters import Parameter
from quire.models.registry import architecture
from quire.models.vision.layout import tower_bytes
from quire.models.weights.packed_bytes import (
    coded_bytes,
    decoded_elements,
    packed_bytes,
    padded_rows,
    round_up,
)

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CODE_BITS = {"u4": 4, "u6": 6}  # of kinds in groups that weights are rounded to


def parameter_count(config: ModelConfig) -> int:
    """Return the number of weights; tied embeddings count once."""
    return sum(parameter.numel for parameter in parameters(config))


def loaded_bytes(config: EngineConfig) -> int:
    """Return the bytes of an engine's loaded weights, with its tower's."""
    own = sum(parameter_bytes(config, parameter) for parameter in parameters(config.model))
    return own + tower_bytes(config)


def parameter_bytes(config: EngineConfig, parameter: Parameter) -> int:
    """Return one parameter's share of `loaded_bytes`: in its form of `models.forms`, or as packing
    quantizes it; the reference ops have only dense weights.

    A tied embedding is there once, packed as the output projection that every step reads whole.
    """
    model, item = config.model, DTYPE_BYTES[config.dtype]
    wide = model.norm == "rms_norm" and model.norm_gain != "rounded"
    if wide and parameter.kind == "norm":
        return parameter.numel * DTYPE_BYTES["float32"]
    forms = config.weight_forms.get(parameter.name)
    if forms is not None and config.ops == "triton":
        return coded_bytes(parameter, forms, item)
    if forms is not None and config.ops != "reference":
        return packed_bytes(parameter, forms, item)
    if config.packing is not None and _is_linear(model, parameter):
        return quantized_bytes(parameter, QUANTIZATIONS[config.packing])
    return parameter.numel * item


def decoded_bytes(config: EngineConfig) -> int:
    """Return the bytes of the largest weight that a step decodes; see `decoded_elements`."""
    if config.ops != "triton":
        return 0
    model, limits = config.model, config.scheduler
    head, most = head_name(model), limits.max_num_batched_tokens
    elements = [
        decoded_elements(parameter, config.weight_forms[parameter.name])
        for parameter in parameters(model)
        if parameter.name in config.weight_forms
        and (limits.max_num_seqs if parameter.name == head else most) >= DECODED_ROWS
    ]
    return DTYPE_BYTES[config.dtype] * max(elements, default=0)


def looked_up_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of tables of which a step reads only its own rows: learned positions, and a
    token embedding that is not also the output projection.
    """
    tables = (p for p in parameters(config) if p.kind == "table" and not _is_linear(config, p))
    return DTYPE_BYTES[dtype] * sum(p.numel for p in tables)


def head_bytes(config: EngineConfig) -> int:
    """Return the bytes of the output projection."""
    name = head_name(config.model)
    return sum(parameter_bytes(config, p) for p in parameters(config.model) if p.name == name)


def unmultiplied_bytes(config: EngineConfig) -> int:
    """Return the bytes of a tied embedding in a pipeline stage that makes no logits."""
    model = config.model
    return 0 if model.in_last_stage or not model.tie_word_embeddings else head_bytes(config)


def expert_bytes(config: EngineConfig) -> int:
    """Return the bytes of the experts among which tokens are routed."""
    return sum(parameter_bytes(config, p) for p in parameters(config.model) if p.experts > 1)


def unchosen(config: ModelConfig) -> float:
    """Share of a layer's experts that one token does not choose."""
    return 0.0 if config.moe is None else 1.0 - config.moe.route.top_k / config.moe.num_experts


def quantized_bytes(parameter: Parameter, scheme: Quantization) -> int:
    """Return the bytes of a packed linear weight, rows padded to blocks of 32, columns to whole
    groups.

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
    tied = config.tie_word_embeddings and parameter.name == "embed.weight"
    return tied or parameter.kind in ("linear", "head")


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str, scales: bool = False) -> int:
    """Return the bytes of KV cache of one token, over all layers.

    With `scales`, and in int8 always, a head has a bfloat16 scale and head_dim bytes. So with a
    head_dim of 128, int8 holds 1.97 times the tokens of bfloat16; with 64, 1.94 times. In int4 a
    key has 5 bits per element, a value 4, and a head 8 for its scale: 3.53 and 3.46 times.
    """
    shapes = [config.kv_shape(layer) for layer in config.kv_layers]
    elements, heads = sum(heads * dim for heads, dim in shapes), sum(heads for heads, _ in shapes)
    if kv_dtype == "int4":
        return elements * 9 // 8 + 2 * heads
    size = elements * (DTYPE_BYTES.get(kv_dtype) or 1)
    if scales or kv_dtype == "int8":
        size += 2 * heads
    return size if config.latent else 2 * size  # values are part of a latent's row


def state_bytes(model: ModelConfig) -> int:
    """Return the bytes of one sequence's states in all recurrent layers."""
    if model.recurrent is None:
        return 0
    numbers = sum(prod(shape) for shape in model.recurrent.state)
    return len(model.layers_with("recurrent")) * numbers * DTYPE_BYTES["float32"]


def kv_bytes_of(config: EngineConfig) -> int:
    """Return the bytes of one token's keys and values, with those of a draft model."""
    scales = config.calculate_kv_scales
    own = kv_bytes_per_token(config.model, config.kv_cache_dtype, scales)
    return own + (kv_bytes_of(config.draft) if config.draft else 0)


def draft_weight_bytes(config: EngineConfig) -> int:
    """Return the bytes of a draft model's weights; 0 without one."""
    return loaded_bytes(config.draft) if config.draft else 0


def lora_bytes(config: EngineConfig) -> int:
    """Return the bytes of `max_cpu_loras` adapters of all layers with the highest rank."""
    limits, model = config.lora, config.model
    if limits is None:
        return 0
    from quire.models.weights.row_order import packed_runs  # needs numpy, which few starts do

    names = architecture(model.architecture).names
    linears = [p for p in parameters(model) if p.in_layer]
    runs = (
        (run, p) for p in linears for run in packed_runs(p, [rows for _, rows in names.stored(p)])
    )
    sizes = (end - first + p.shape[1] for (_, first, end), p in runs)
    return limits.max_cpu_loras * limits.max_lora_rank * sum(sizes) * DTYPE_BYTES[config.dtype]
