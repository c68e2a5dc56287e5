"""Views of arrays for the native kernels, and the checks that need dtypes and strides.

Each raises a ValueError that names the array and describes it. The ops themselves check whether
shapes and dtypes fit each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quire import _native
from quire.core.config import MAX_CONVERTED_HEAD_DIM
from quire.core.dtypes import (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT32,
    DType,
    HostArray,
    is_float,
)
from quire.ops.array import address
from quire.ops.metadata import KVCache

FLOAT16: DType = np.dtype(np.float16)
INT8: DType = np.dtype(np.int8)
UINT8: DType = np.dtype(np.uint8)
INT32: DType = np.dtype(np.int32)
INT64: DType = np.dtype(np.int64)
DTYPE_CODES = {FLOAT32: _native.FLOAT32, BFLOAT16: _native.BFLOAT16, FLOAT16: _native.FLOAT16}
"""Of the dtypes that the kernels compute with."""
CACHE_CODES = DTYPE_CODES | {
    INT8: _native.INT8,
    UINT8: _native.INT4,
    FLOAT8_E4M3: _native.FLOAT8_E4M3,
    FLOAT8_E5M2: _native.FLOAT8_E5M2,
}
"""Of the dtypes that a KV cache may have."""
_SCALED = (INT8, UINT8, FLOAT8_E4M3, FLOAT8_E5M2)
"""Cache dtypes that may have scales."""


def view(x: HostArray) -> _native.Matrix:
    """Return x [..., cols] for the kernels: a matrix with dense rows, or contiguous x."""
    cols = x.shape[-1]
    rows = x.shape[0] if x.ndim == 2 else x.size // cols
    stride = cols
    if x.ndim == 2:
        apart = x.strides[0] // x.itemsize
        if rows > 1 or apart > cols:  # one recorded row represents many
            stride = apart
    return _native.Matrix(address(x), rows, cols, stride, DTYPE_CODES[x.dtype])


def dense(name: str, x: HostArray) -> HostArray:
    """Return floats [..., cols] as a matrix with dense rows; a copy only if no view exists."""
    cols = x.shape[-1] if x.ndim else 0
    if x.dtype not in DTYPE_CODES or cols == 0:
        raise ValueError(f"{name} is {describe(x)}; wanted a float [..., cols]")
    if x.ndim != 2:
        x = x.reshape(-1, cols)
    return x if x.strides[1] == x.itemsize else np.ascontiguousarray(x)


def matrix(name: str, x: HostArray) -> _native.Matrix:
    """Return the view of x [rows, cols], floats whose rows are dense."""
    fits = x.dtype in DTYPE_CODES and x.ndim == 2 and (x.strides[1] == x.itemsize or not x.size)
    if not fits or x.shape[1] == 0:
        raise ValueError(f"{name} is {describe(x)}; wanted floats [rows, cols] with dense rows")
    return view(x)


def contiguous(name: str, x: HostArray, dims: int) -> _native.Matrix:
    """Return the view of contiguous floats with `dims` dimensions; a vector is one row."""
    fits = x.dtype in DTYPE_CODES and x.ndim == dims and x.flags.c_contiguous
    if not fits or x.shape[-1] == 0:
        raise ValueError(f"{name} is {describe(x)}; wanted contiguous floats of {dims} dimensions")
    return view(x)


def indices(name: str, x: HostArray) -> _native.Indices:
    """Return the view of a contiguous int64 [T]."""
    if x.dtype != INT64 or x.ndim != 1 or not x.flags.c_contiguous:
        raise ValueError(f"{name} is {describe(x)}; wanted a contiguous int64 [T]")
    return _native.Indices(address(x), x.size)


def cache_view(cache: KVCache[HostArray]) -> _native.KvCache:
    """Return the view of a checked cache."""
    k, v, k_scale, v_scale, k_signs, k_unit, v_unit = cache
    blocks, heads, size, _ = k.shape
    elements = 1 + cache.packed  # of one of the array's
    return _native.KvCache(
        address(k),
        _address(v),
        CACHE_CODES[k.dtype],
        _address(k_scale),
        _address(v_scale),
        _address(k_signs),
        k_unit,
        v_unit,
        (blocks, heads, size, cache.head_dim),
        elements * k.strides[0] // k.itemsize,
        0 if v is None else elements * v.strides[0] // v.itemsize,
        elements * k.strides[1] // k.itemsize,
    )


def _address(part: HostArray | None) -> int:
    return 0 if part is None else address(part)


def no_heads_of(cache: KVCache[HostArray], dtype: DType, width: int) -> _native.KvCache:
    """Return a view of a cache's slots for queries alone, of heads of `width` in `dtype`."""
    blocks, _, size, _ = cache.k.shape
    code = CACHE_CODES[dtype]
    return _native.KvCache(
        address(cache.k), 0, code, 0, 0, 0, 1.0, 1.0, (blocks, 0, size, width), 0, 0, 0
    )


def check_cache(cache: KVCache[HostArray], dtype: DType, kv_heads: int, width: int) -> None:
    """Check that a cache holds heads of `width` in `dtype`, bfloat16, 8 or 4 bits.

    The tokens of a head lie one after another. A cache of latents has only k.
    """
    kept = cache.k.dtype
    if kept != dtype:
        wanted = (BFLOAT16, *_SCALED)
        if kept not in wanted:
            raise ValueError(
                f"cache.k is {describe(cache.k)}; wanted {dtype}, bfloat16 or at most 8 bits"
            )
        if width > MAX_CONVERTED_HEAD_DIM:
            raise ValueError(
                f"{kept} caches hold heads of up to {MAX_CONVERTED_HEAD_DIM}, not {width}"
            )
        dtype = kept
    check_scales(cache)
    if cache.packed:
        if width % 8 != 0:
            raise ValueError(f"int4 caches hold heads of a multiple of 8, not {width}")
        width //= 2
    for name, part in _parts(cache, cache.k, cache.v, "cache.k", "cache.v"):
        shape, strides = part.shape, strides_of(part)
        fits = part.ndim == 4 and part.dtype == dtype
        if not fits or shape[1] != kv_heads or shape[3] != width or strides[2:] != (width, 1):
            raise ValueError(
                f"{name} is {describe(part)}; "
                f"wanted {dtype} [blocks, {kv_heads}, block_size, {width}]"
            )
    if cache.v is None:
        return
    if cache.k.shape != cache.v.shape or cache.k.strides != cache.v.strides:
        raise misfit("cache.v", cache.v, "cache.k", cache.k)


def check_scales(cache: KVCache[HostArray]) -> None:
    """Check that integer parts have one scale per token and head, and wide floats none; and that
    keys of int4 have signs."""
    dtype = cache.k.dtype
    if cache.k_scale is None and cache.v_scale is None and dtype not in (INT8, UINT8):
        return
    if dtype not in _SCALED:
        raise ValueError(f"a cache of {dtype} has no scales")
    shape, kept = cache.k.shape[:3], UINT8 if cache.packed else BFLOAT16
    scales = _parts(cache, cache.k_scale, cache.v_scale, "cache.k_scale", "cache.v_scale")
    for name, scale in scales:
        _check_dense(name, scale, shape, kept)
    if cache.packed:
        _check_dense("cache.k_signs", cache.k_signs, (*shape, cache.head_dim // 8), UINT8)


def _check_dense(name: str, part: HostArray | None, shape: tuple[int, ...], dtype: DType) -> None:
    if part is None:
        raise ValueError(f"{name} is missing; wanted {dtype} {list(shape)}")
    if part.dtype != dtype or part.shape != shape or not part.flags.c_contiguous:
        raise ValueError(f"{name} is {describe(part)}; wanted contiguous {dtype} {list(shape)}")


def _parts(
    cache: KVCache[HostArray], k: Any, v: Any, k_name: str, v_name: str
) -> list[tuple[str, Any]]:
    """Return what there is of k, and of v unless values are part of k."""
    return [(k_name, k)] if cache.v is None else [(k_name, k), (v_name, v)]


def like(x: HostArray) -> HostArray:
    """Return a new contiguous array of x's shape and dtype."""
    return np.empty(x.shape, x.dtype)


def misfit(name: str, x: HostArray, other_name: str, other: HostArray) -> ValueError:
    return ValueError(f"{name} is {describe(x)}, but {other_name} is {describe(other)}")


def describe(t: HostArray) -> str:
    return f"{t.dtype} {list(t.shape)}, strides {list(strides_of(t))}"


def strides_of(t: HostArray) -> tuple[int, ...]:
    """Return the strides in elements."""
    return tuple(stride // t.itemsize for stride in t.strides)


def dense_rows(weight: HostArray) -> HostArray:
    """Return the weight with contiguous rows, copied if needed."""
    if weight.ndim != 2 or weight.dtype not in DTYPE_CODES:
        raise ValueError(f"weight is {describe(weight)}; wanted a float [N, K]")
    return weight if weight.strides[1] == weight.itemsize else np.ascontiguousarray(weight)


def float_bias(bias: HostArray | None, n: int) -> HostArray | None:
    """Return the bias as contiguous float32 [n]. Raises ValueError for another shape or dtype."""
    if bias is None:
        return None
    if bias.shape != (n,) or not is_float(bias.dtype):
        raise ValueError(f"bias is {describe(bias)}; wanted a float [{n}]")
    return np.ascontiguousarray(bias, FLOAT32)


def result(out: HostArray | None, shape: tuple[int, ...], dtype: DType) -> HostArray:
    """Return an array of the shape and dtype: `out` if it fits, or a new one."""
    if dtype not in DTYPE_CODES:
        raise ValueError(f"the result cannot be {dtype}; wanted a float of 16 or 32 bits")
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise ValueError(f"out is {describe(out)}; wanted contiguous {dtype} {list(shape)}")
    return out
