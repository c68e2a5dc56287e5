"""numpy's dtypes by name: "float32", "bfloat16", "float8_e4m3fn" …

Importing this module gives numpy the formats that it lacks (`ml_dtypes`). `str(dtype)` is the name
again.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

HostArray = NDArray[Any]
"""An array in the host's memory, of any dtype."""
Floats = HostArray
"""A float32 array that is computed with: numpy annotates float32 / float as float64."""

DType = np.dtype[Any]
FLOAT32: DType = np.dtype(np.float32)
BFLOAT16: DType = np.dtype(ml_dtypes.bfloat16)
FLOAT8_E4M3: DType = np.dtype(ml_dtypes.float8_e4m3fn)
FLOAT8_E5M2: DType = np.dtype(ml_dtypes.float8_e5m2)
FLOAT8 = frozenset({FLOAT8_E4M3, FLOAT8_E5M2})
FLOATS = frozenset({np.dtype(name) for name in ("float16", "float32", "float64")}) | {BFLOAT16}
"""Floats of 16 bits and more."""


_ALIASES = {
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "int4": "uint8",  # two elements per byte
}


def dtype_of(name: str) -> DType:
    """Return numpy's dtype of a name, or of a name that `--kv-cache-dtype` has for it.

    Raises:
        TypeError: there is no such dtype.
    """
    return np.dtype(_ALIASES.get(name, name))


def is_float(dtype: DTypeLike) -> bool:
    """Return whether a dtype is a float; `np.issubdtype` says no to those of `ml_dtypes`."""
    return np.dtype(dtype) in FLOATS | FLOAT8


def finfo(dtype: DTypeLike) -> Any:
    """Return the limits of a float as `np.finfo` does: `max`, `smallest_normal`, `nmant` …"""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def converted(values: HostArray, dtype: DType) -> HostArray:
    """Return `values` as `dtype`, rounded to nearest even; the same array if it has that dtype.

    Values out of range become infinite, as they do in torch, without a warning.
    """
    with np.errstate(all="ignore"):
        if values.dtype in FLOAT8 and values.dtype != dtype:
            # A table is several times as fast as the cast of ml_dtypes.
            every = np.arange(256, dtype=np.uint8).view(values.dtype).astype(dtype)
            return every[values.view(np.uint8)]
        return values.astype(dtype, copy=False)
