"""RoPE's scaling in GGUF's keys and tensors of factors, both ways."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf_families import Metadata
from quire.checkpoint.gguf_translation import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS
from quire.checkpoint.gguf_writer import Value
from quire.core.errors import UnsupportedModelError
from quire.core.layers import yarn_magnitude
from quire.core.model_config import RopeConfig


def rope_scaling(meta: Metadata, head_dim: int) -> dict[str, Any] | None:
    """Return RoPE's scaling, with llama.cpp's meaning of the keys."""
    kind = meta.text("rope.scaling.type", "linear")
    factor = meta.number("rope.scaling.factor", meta.number("rope.scale_linear", 0.0)) or 1.0
    if kind == "none":
        factor = 1.0
    _refuse_neglected(meta, kind, factor)
    sharper = meta.number("rope.scaling.attn_factor", 1.0)
    if sharper != 1.0 and meta.architecture == "gemma3":
        raise _no_such_scaling(meta, "rope.scaling.attn_factor", sharper)
    own_factors = ROPE_FACTORS in meta.file.tensors or LONG_FACTORS in meta.file.tensors
    if own_factors and factor != 1.0:
        raise _no_such_scaling(
            meta, "rope.scaling.factor", factor, " together with a tensor of factors"
        )
    if ROPE_FACTORS in meta.file.tensors:
        return _llama3_scaling(meta, head_dim, sharper)
    if LONG_FACTORS in meta.file.tensors:
        return _longrope(meta, sharper)
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(
            f"{meta.file.path.name}: RoPE scaling {kind!r} is not supported.",
            fix="Quire knows none, linear, yarn, Llama 3's, and longrope with its factors.",
        )
    original = meta.integer("rope.scaling.original_context_length", 0)
    trained = {"original_max_position_embeddings": original} if original else {}
    if kind == "yarn":
        return _yarn(meta, factor, sharper) | trained | _latent_scale(meta, sharper)
    if sharper != 1.0:
        rotary_dim = meta.integer("rope.dimension_count", head_dim)
        return _factors(meta, [factor] * (rotary_dim // 2), sharper)
    return {"rope_type": "linear", "factor": factor} | trained if factor != 1.0 else None


_YARN_KEYS = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}


def _yarn(meta: Metadata, factor: float, sharper: float) -> dict[str, Any]:
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    for key, name in _YARN_KEYS.items():
        value = meta.number(f"rope.scaling.{key}", 0.0)
        if value:
            scaling[name] = value
    if sharper != 1.0:
        scaling["attention_factor"] = sharper * yarn_magnitude(scaling)
    return scaling


def _latent_scale(meta: Metadata, sharper: float) -> dict[str, float]:
    """Return by how much YaRN sharpens scores of latent attention, which no cosine then does.

    The key has a tenth of the configuration's number, in float32.
    """
    weight = 0.0
    if meta.architecture == "deepseek2":
        weight = round(10 * meta.number("rope.scaling.yarn_log_multiplier", 0.0), 6)
        if sharper != 1.0:
            raise _no_such_scaling(meta, "rope.scaling.attn_factor", sharper)
    return {"mscale": weight, "mscale_all_dim": weight} if weight else {}


def _refuse_neglected(meta: Metadata, kind: str, factor: float) -> None:
    """Refuse keys that llama.cpp does not apply to these architectures."""
    is_yarn = kind == "yarn"
    neutral = {
        "yarn_attn_factor": (yarn_magnitude({"factor": factor}),) if is_yarn else (1.0,),
        "yarn_ext_factor": (-1.0, 1.0) if is_yarn else (-1.0, 0.0),
        "yarn_log_multiplier": (0.0, 1.0) if meta.architecture == "mistral3" else (0.0,),
        "alpha": (0.0,),
    }
    if meta.architecture == "deepseek2":
        del neutral["yarn_log_multiplier"]
    for key, values in neutral.items():
        value = meta.number(f"rope.scaling.{key}", values[0])
        if not any(math.isclose(value, each, rel_tol=1e-6) for each in values):
            raise _no_such_scaling(meta, f"rope.scaling.{key}", value)


def _no_such_scaling(
    meta: Metadata, key: str, value: float, where: str = ""
) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{meta.file.path.name}: {meta.architecture}.{key} is {value:g}{where}; Quire has no such "
        "RoPE scaling.",
        fix="Convert the model again without it, or use its safetensors.",
    )


def _factors(meta: Metadata, factors: list[float], sharper: float) -> dict[str, Any]:
    """Return factors for all lengths, in LongRoPE's form."""
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": sharper,
        "original_max_position_embeddings": meta.integer("context_length"),
    }


def _longrope(meta: Metadata, sharper: float) -> dict[str, Any]:
    """Return LongRoPE's factors from their two tensors."""
    lists = {"short_factor": SHORT_FACTORS, "long_factor": LONG_FACTORS}
    scaling: dict[str, Any] = {"rope_type": "longrope", "attention_factor": sharper}
    for field, name in lists.items():
        tensor = meta.file.tensors.get(name)
        if tensor is None or tensor.type.name != "F32":
            raise UnsupportedModelError(
                f"{meta.file.path.name}: tensor {name!r} is missing or not F32.",
                fix="Convert the model again.",
            )
        scaling[field] = meta.file.raw(name).view("<f4").tolist()
    scaling["original_max_position_embeddings"] = meta.integer(
        "rope.scaling.original_context_length", meta.integer("context_length")
    )
    return scaling


def _llama3_scaling(meta: Metadata, head_dim: int, sharper: float) -> dict[str, Any]:
    """Return Llama 3's parameters, recovered from the factors in the file.

    Only the largest factor is a parameter; the others follow from it and from constants that
    all models of the family share. They are computed again and compared. Other factors are taken
    as they are, in the form that LongRoPE's have.
    """
    tensor = meta.file.tensors[ROPE_FACTORS]
    parameters = {
        "rope_type": "llama3",
        "factor": 1.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if tensor.type.name != "F32" or tensor.shape != (head_dim // 2,):
        raise UnsupportedModelError(
            f"{meta.file.path.name}: tensor {ROPE_FACTORS!r} is not F32 [{head_dim // 2}].",
            fix="Convert the model again.",
        )
    stored = meta.file.raw(tensor.name).view("<f4")
    parameters["factor"] = factor = float(stored.max())
    theta = meta.number("rope.freq_base", 10000.0)
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((8192 / wavelengths - 1.0) / 3.0, 0.0, 1.0)
    usual = 1 / ((1 - smooth) / factor + smooth) if factor > 0 else np.nan
    if sharper == 1.0 and np.allclose(stored, usual, rtol=1e-3):
        return parameters
    return _factors(meta, stored.tolist(), sharper)


def factor_tensors(rope: RopeConfig | None) -> dict[str, npt.NDArray[np.float32]]:
    """Return the frequency factors that a file stores as tensors: Llama 3's and LongRoPE's."""
    if rope is None or rope.scaling not in ("llama3", "longrope"):
        return {}
    p = rope.params
    if rope.scaling == "longrope":
        return {
            LONG_FACTORS: np.array(p["long_factor"], np.float32),
            SHORT_FACTORS: np.array(p["short_factor"], np.float32),
        }
    frequencies = rope.theta ** -(np.arange(0, rope.rotary_dim, 2) / rope.rotary_dim)
    turns = p["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0) if high > low else turns >= low
    return {ROPE_FACTORS: (1 / ((1 - kept) / p["factor"] + kept)).astype(np.float32)}


def scaling_keys(rope: RopeConfig, architecture: str) -> dict[str, Value]:
    """Return the keys of a scaling.

    Args:
        architecture: GGUF's.

    Raises:
        UnsupportedModelError: GGUF cannot say it.
    """
    p: dict[str, Any] = rope.params
    match rope.scaling:
        case "default" | "llama3":  # whose factors are a tensor
            return {}
        case "linear":
            return {"rope.scaling.type": "linear", "rope.scaling.factor": float(p["factor"])}
        case "yarn":
            return _yarn_keys(p, architecture)
        case "longrope":
            return {
                "rope.scaling.original_context_length": p["original_max_position_embeddings"],
                "rope.scaling.attn_factor": p["attention_factor"],
            }
    raise not_in_gguf(f"GGUF cannot say that RoPE is scaled in the way {rope.scaling!r}.")


def not_in_gguf(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(what, fix="Write compressed-tensors instead.")


def _yarn_keys(p: dict[str, Any], architecture: str) -> dict[str, Value]:
    """Return YaRN's keys; GGUF readers round its range and sharpen by the factor alone."""
    exact = architecture == "gpt-oss"
    if p.get("truncate", True) == exact:
        raise not_in_gguf(
            f"YaRN's truncate is {str(not exact).lower()}, and GGUF has no way to say it."
        )
    keys: dict[str, Value] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(p["factor"]),
        "rope.scaling.original_context_length": p["original_max_position_embeddings"],
    }
    for name in ("beta_fast", "beta_slow"):
        if name in p:
            keys[f"rope.scaling.yarn_{name}"] = float(p[name])
    sharper = yarn_magnitude(p) / yarn_magnitude({"factor": p["factor"]})
    if sharper != 1.0 and architecture != "deepseek2":  # whose scores are sharpened instead
        keys["rope.scaling.attn_factor"] = sharper
    return keys
