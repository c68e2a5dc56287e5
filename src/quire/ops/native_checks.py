"""Views of tensors for the native kernels, and what only torch can check of them.

Each raises a ValueError that names the tensor and describes it. The ops themselves check whether
shapes and dtypes fit each other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire import _native
from quire.core.config import MAX_CONVERTED_HEAD_DIM
from quire.ops.metadata import KVCache

_DTYPE_CODES = {
    torch.float32: _native.FLOAT32,
    torch.bfloat16: _native.BFLOAT16,
    torch.float16: _native.FLOAT16,
}
CACHE_CODES = _DTYPE_CODES | {
    torch.int8: _native.INT8,
    torch.float8_e4m3fn: _native.FLOAT8_E4M3,
    torch.float8_e5m2: _native.FLOAT8_E5M2,
}
"""Of the dtypes that a KV cache may have."""
_EIGHT_BITS = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)


def view(x: Tensor) -> _native.Matrix:
    """x [..., cols] as the kernels see it: a matrix, whose rows are dense, or contiguous x."""
    cols = x.shape[-1]
    rows = x.shape[0] if x.ndim == 2 else x.numel() // cols
    stride = cols
    if x.ndim == 2 and (rows > 1 or x.stride(0) > cols):  # one recorded row stands for many
        stride = x.stride(0)
    return _native.Matrix(x.data_ptr(), rows, cols, stride, _DTYPE_CODES[x.dtype])


def dense(name: str, x: Tensor) -> Tensor:
    """Floats [..., cols] as a matrix with dense rows; a copy only where no such view exists."""
    cols = x.shape[-1] if x.ndim else 0
    if x.dtype not in _DTYPE_CODES or not x.is_cpu or cols == 0:
        raise ValueError(f"{name} is {describe(x)}; wanted a float [..., cols] on the CPU")
    if x.ndim != 2:
        x = x.reshape(-1, cols)
    return x if x.stride(1) == 1 else x.contiguous()


def matrix(name: str, x: Tensor) -> _native.Matrix:
    """The view of x [rows, cols], floats whose rows are dense."""
    fits = x.dtype in _DTYPE_CODES and x.is_cpu and x.ndim == 2 and x.stride(1) == 1
    if not fits or x.shape[1] == 0:
        raise ValueError(f"{name} is {describe(x)}; wanted floats [rows, cols] with dense rows")
    return view(x)


def contiguous(name: str, x: Tensor, dims: int) -> _native.Matrix:
    """The view of contiguous floats of so many dimensions; a vector is one row."""
    fits = x.dtype in _DTYPE_CODES and x.is_cpu and x.ndim == dims and x.is_contiguous()
    if not fits or x.shape[-1] == 0:
        raise ValueError(f"{name} is {describe(x)}; wanted contiguous floats of {dims} dimensions")
    return view(x)


def indices(name: str, x: Tensor) -> _native.Indices:
    """The view of a contiguous int64 [T]."""
    if x.dtype != torch.int64 or not x.is_cpu or x.ndim != 1 or not x.is_contiguous():
        raise ValueError(f"{name} is {describe(x)}; wanted a contiguous int64 [T] on the CPU")
    return _native.Indices(x.data_ptr(), x.numel())


def cache_view(cache: KVCache) -> _native.KvCache:
    """The view of a cache that was checked."""
    k, v, k_scale, v_scale, k_unit, v_unit = cache
    blocks, heads, size, width = k.shape
    return _native.KvCache(
        k.data_ptr(),
        v.data_ptr(),
        CACHE_CODES[k.dtype],
        0 if k_scale is None else k_scale.data_ptr(),
        0 if v_scale is None else v_scale.data_ptr(),
        k_unit,
        v_unit,
        (blocks, heads, size, width),
        k.stride(0),
        v.stride(0),
        k.stride(1),
    )


def check_cache(cache: KVCache, dtype: torch.dtype, kv_heads: int, width: int) -> None:
    """Both parts must hold heads of `width`, the tokens of a head one after another, in `dtype`,
    bfloat16 or 8 bits."""
    kept = cache.k.dtype
    if kept != dtype:
        wanted = (torch.bfloat16, *_EIGHT_BITS)
        if kept not in wanted:
            raise ValueError(
                f"cache.k is {describe(cache.k)}; wanted {dtype}, bfloat16 or 8 bits an element"
            )
        if width > MAX_CONVERTED_HEAD_DIM:
            raise ValueError(
                f"{kept} caches hold heads of up to {MAX_CONVERTED_HEAD_DIM}, not {width}"
            )
        dtype = kept
    check_scales(cache)
    for name, part in (("cache.k", cache.k), ("cache.v", cache.v)):
        shape, strides = part.shape, part.stride()
        fits = part.ndim == 4 and part.dtype == dtype and part.is_cpu
        if not fits or shape[1] != kv_heads or shape[3] != width or strides[2:] != (width, 1):
            raise ValueError(
                f"{name} is {describe(part)}; "
                f"wanted {dtype} [blocks, {kv_heads}, block_size, {width}]"
            )
    if cache.k.shape != cache.v.shape or cache.k.stride() != cache.v.stride():
        raise misfit("cache.v", cache.v, "cache.k", cache.k)


def check_scales(cache: KVCache) -> None:
    """There must be one scale for each token and head of k and v, in int8; none in wide floats."""
    dtype = cache.k.dtype
    if cache.k_scale is None and cache.v_scale is None and dtype != torch.int8:
        return
    if dtype not in _EIGHT_BITS:
        raise ValueError(f"a cache of {dtype} has no scales")
    for name, scale in (("cache.k_scale", cache.k_scale), ("cache.v_scale", cache.v_scale)):
        if scale is None:
            raise ValueError(f"{name} is missing; wanted scales of k and v")
        fits = scale.dtype == torch.bfloat16 and scale.is_cpu and scale.is_contiguous()
        if not fits or scale.shape != cache.k.shape[:3]:
            raise ValueError(
                f"{name} is {describe(scale)}; wanted contiguous bfloat16 {list(cache.k.shape[:3])}"
            )


def like(x: Tensor) -> Tensor:
    """A new contiguous tensor of x's shape; the quickest way that torch has."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def misfit(name: str, x: Tensor, other_name: str, other: Tensor) -> ValueError:
    return ValueError(f"{name} is {describe(x)}, but {other_name} is {describe(other)}")


def describe(t: Tensor) -> str:
    return f"{t.dtype} {list(t.shape)} on {t.device}, strides {list(t.stride())}"
