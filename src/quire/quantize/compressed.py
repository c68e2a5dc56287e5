"""compressed-tensors: the tensors of a quantized weight, and their description in config.json.

    int8         weight I8 [N, K]             weight_scale [N, 1]
    fp8          weight F8_E4M3 [N, K]        weight_scale [N, 1]
    int8_w8a16   weight_packed I32 [N, K/4]   weight_scale [N, 1]     weight_shape
    int4         weight_packed I32 [N, K/8]   weight_scale [N, G]     weight_shape
                                              weight_zero_point I32 [N/8, G], if asymmetric

A packed integer holds its first code in its lowest bits; codes count from 0, and so do zero points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.safetensors import DTYPES
from quire.checkpoint.safetensors_writer import StoredTensor
from quire.core.dtypes import DType, HostArray, converted
from quire.core.quantized import QuantizedWeight
from quire.quantize.recipe import Recipe

_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
"""The later name of each dtype: uint8 is U8, not F8_E8M0."""
_FORMATS = {
    "int8": "int-quantized",
    "fp8": "float-quantized",
    "int8_w8a16": "pack-quantized",
    "int4": "pack-quantized",
}


def stored_weight(
    stem: str, weight: QuantizedWeight, recipe: Recipe, scale_dtype: DType
) -> Iterator[StoredTensor]:
    """Yield the tensors that replace the weight of `stem`, a module's name."""
    n, k = weight.shape
    scale = converted(weight.scale, scale_dtype)
    yield stored(f"{stem}.weight_scale", scale)
    if _FORMATS[recipe.scheme] != "pack-quantized":
        yield stored(f"{stem}.weight", weight.codes)
        return
    per_word = 32 // weight.bits
    shape = np.array([n, k], dtype=np.int64)
    yield StoredTensor(f"{stem}.weight_shape", "I64", (2,), lambda: shape)
    yield StoredTensor(
        f"{stem}.weight_packed", "I32", (n, -(-k // per_word)), lambda: _pack(weight)
    )
    if not recipe.symmetric:
        zero = weight.zero
        assert zero is not None
        yield StoredTensor(
            f"{stem}.weight_zero_point",
            "I32",
            (-(-n // per_word), zero.shape[1]),
            lambda: _pack_bits(zero.T.astype(np.uint8), weight.bits).T,
        )


def stored(name: str, values: HostArray) -> StoredTensor:
    """Return an array as a tensor of a file."""
    return StoredTensor(name, _NAMES[values.dtype], values.shape, lambda: values)


def quantization_config(recipe: Recipe, ignored: Sequence[str]) -> dict[str, Any]:
    """Return config.json's entry; `ignored` are the modules that stay unchanged."""
    integers = recipe.scheme != "fp8"
    weights: dict[str, Any] = {
        "num_bits": 4 if recipe.scheme == "int4" else 8,
        "type": "int" if integers else "float",
        "symmetric": recipe.symmetric,
        "strategy": "group" if recipe.scheme == "int4" else "channel",
        "group_size": recipe.group_size if recipe.scheme == "int4" else None,
        "dynamic": False,
        "actorder": "weight" if recipe.method == "gptq" and recipe.act_order else None,
    }
    activations = {
        "num_bits": 8,
        "type": weights["type"],
        "symmetric": True,
        "strategy": "token",
        "dynamic": True,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMATS[recipe.scheme],
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": activations if recipe.scheme in ("int8", "fp8") else None,
                "output_activations": None,
            }
        },
        "ignore": list(ignored),
        "kv_cache_scheme": None,
    }


def _pack(weight: QuantizedWeight) -> npt.NDArray[Any]:
    codes = weight.codes
    if codes.dtype == np.int8:  # packed codes count from 0, int8 from −128
        codes = codes.view(np.uint8) ^ 128
    return _pack_bits(codes, weight.bits)


def _pack_bits(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[Any]:
    """Pack codes, uint8 [N, K], into int32 [N, ceil(K · bits / 32)], padded with zeros."""
    per_word = 32 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per_word)))
    packed = padded[:, 0::2] | (padded[:, 1::2] << 4) if bits == 4 else padded
    return np.ascontiguousarray(packed).view("<i4")
