"""The types of numbers: of weights and activations, of the KV cache, of quantized weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Any, Literal

from quire.checkpoint.source import ModelSource
from quire.core.config import MAX_CONVERTED_HEAD_DIM, ON_TORCH, DeviceType, KVCacheDType
from quire.core.model_config import ModelConfig
from quire.core.quantization import QUANTIZATIONS, Form
from quire.core.registry import did_you_mean
from quire.models.forms import Forms, rounded_forms, said_forms, stored_forms
from quire.models.layout import parameters
from quire.models.weights.packed_bytes import rounds_activations
from quire.quant.names import NAMES, RANDOM_ONLY
from quire.quant.registry import GGUF, METHODS, method, quantization_config
from quire.quant.scheme import Method
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import value_error
from quire.system.records import dataclass

_KERNELS = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "inc": "auto-round",
    "modelopt_fp4": "modelopt",
}
"""vLLM's names for a checkpoint's method with one of its kernels → the method."""


_DTYPES: dict[str, Literal["float32", "bfloat16", "float16"]] = {
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}


def resolve_dtype(
    args: EngineArgs, model: ModelConfig, device: DeviceType, notes: list[str]
) -> Literal["float32", "bfloat16", "float16"]:
    """Return the type of weights and activations."""
    if args.dtype != "auto":
        return _DTYPES[args.dtype]
    if model.dtype == "float16":
        if args.ops in ON_TORCH and device == "cpu":
            notes.append(
                "dtype float32: the reference ops compute the checkpoint's float16 slowly."
            )
            return "float32"
        notes.append(
            "dtype float16: the checkpoint's. Sums are float32; --dtype bfloat16 is faster on long "
            "prompts, and rounds the weights."
        )
        return "float16"
    dtype: Literal["float32", "bfloat16"] = "bfloat16" if model.dtype == "bfloat16" else "float32"
    notes.append(f"dtype {dtype}: the checkpoint's.")
    return dtype


_KV_DTYPES: dict[str, KVCacheDType] = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp8": "fp8_e4m3",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "int8": "int8",
    "int4": "int4",
}


def resolve_kv_dtype(args: EngineArgs, model: ModelConfig, dtype: KVCacheDType) -> KVCacheDType:
    """Return the type of keys and values, if weights and activations have `dtype`.

    Raises:
        ConfigError: the model or another flag does not allow it.
    """
    kept = _KV_DTYPES.get(args.kv_cache_dtype, dtype)
    if args.calculate_kv_scales and not kept.startswith("fp8"):
        raise value_error(
            args,
            "calculate_kv_scales",
            f"only an fp8 KV cache has scales to calculate, and this one is {kept}. "
            "Add --kv-cache-dtype fp8.",
        )
    if kept != dtype and model.widest_head > MAX_CONVERTED_HEAD_DIM:
        raise value_error(
            args,
            "kv_cache_dtype",
            f"{kept} needs a head_dim of at most {MAX_CONVERTED_HEAD_DIM}; the model's is "
            f"{model.widest_head}.",
        )
    if kept == "int4" and model.latent is not None:
        raise value_error(
            args,
            "kv_cache_dtype",
            "latent attention has no int4 cache: all heads' keys and values come from one row of "
            "latents, and 4 bits would blur them all. Use int8.",
        )
    if kept == "int4" and model.head_dim % 8 != 0:
        raise value_error(
            args,
            "kv_cache_dtype",
            f"int4 needs a head_dim that 8 divides; the model's is {model.head_dim}. Use int8.",
        )
    return kept


@dataclass(frozen=True, slots=True)
class Quantized:
    """The fields `quantization`, `quantization_config` and `weight_forms` of `EngineConfig`."""

    name: str | None = None
    config: dict[str, Any] | None = None
    forms: Forms = field(default_factory=dict)


def resolve_quantization(
    args: EngineArgs, source: ModelSource, model: ModelConfig, notes: list[str]
) -> Quantized:
    """Read the headers of a quantized checkpoint, and decide the weights' forms.

    Raises:
        ConfigError: --quantization is unknown, or contradicts the checkpoint.
        CheckpointError, UnsupportedModelError: the checkpoint's configuration or tensors.
    """
    stored = _of_checkpoint(source, model)
    wanted = args.quantization
    if stored is not None:
        if _KERNELS.get(str(wanted), wanted) not in (None, stored.name):
            why = f"the weights are quantized already, by {stored.name}; this would add errors."
            fix = f"Leave --quantization unset, or use the unquantized model with {wanted}."
            raise value_error(args, "quantization", why, fix)
        notes.append(f"quantization {stored.name}: the checkpoint's. {_summary(stored.forms)}")
        _note_activations(args, model, stored.forms, notes)
        return stored
    if wanted is None:
        return Quantized()
    if wanted not in NAMES:
        why = "the checkpoint is not quantized this way, and Quire cannot round to it."
        known = wanted in METHODS or wanted == GGUF
        raise value_error(args, "quantization", why if known else did_you_mean(wanted, NAMES))
    if wanted in RANDOM_ONLY and source.kind != "dummy":
        why = "it needs a calibration to choose the order."
        fix = "Use --load-format dummy to measure speed."
        raise value_error(args, "quantization", why, fix)
    forms = rounded_forms(model, NAMES[wanted])
    notes.append(f"quantization {wanted}: {NAMES[wanted].about}. {_summary(forms)}")
    _note_activations(args, model, forms, notes)
    native = wanted in QUANTIZATIONS and args.ops not in ON_TORCH
    return Quantized(wanted, None, {} if native else forms)


def _of_checkpoint(source: ModelSource, model: ModelConfig) -> Quantized | None:
    said = quantization_config(source.config)
    if said is not None:
        how = method(said)
        stored = source.kind == "hf"
        forms = _stored_forms(source, model, how) if stored else said_forms(model, how)
        return Quantized(how.name, dict(said), forms)
    if source.kind != "gguf":
        return None
    forms = _stored_forms(source, model, None)
    return Quantized(GGUF, {"quant_method": GGUF}, forms) if forms else None


def _stored_forms(source: ModelSource, model: ModelConfig, method: Method | None) -> Forms:
    from quire.models.weights.checkpoint import text_weights

    return stored_forms(text_weights(source, model), model, method)


def _note_activations(args: EngineArgs, model: ModelConfig, forms: Forms, notes: list[str]) -> None:
    """Warn if products lose more accuracy than the weights' rounding."""
    columns = {p.name: p.shape[1] for p in parameters(model) if p.name in forms}
    if args.ops == "reference":  # it dequantizes
        return
    if any(rounds_activations(parts, columns[name]) for name, parts in forms.items()):
        notes.append(
            "activations: products with these weights round them to 8 bits, which costs about 1 % "
            "of each product, more with outliers. int8_w8a16 and fp8 round them to bfloat16 "
            "(0.2 %); their prompts take up to twice the time of int8."
        )


def _summary(forms: Forms) -> str:
    """Return a summary such as "Linear weights: 28 of 4 bits (integers, one scale per 128)."."""
    counted = Counter(_describe(form) for parts in forms.values() for form in parts)
    return f"Linear weights: {', '.join(f'{n} of {what}' for what, n in counted.most_common())}."


def _describe(form: Form | None) -> str:
    if form is None:
        return "full width"
    kind = form.codebook or (form.codes if form.codes.startswith("float") else "integers")
    return f"{form.bits} bits ({kind}, one scale per {form.group})"
