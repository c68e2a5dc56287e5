"""What native kernels cannot check: whether the tensors that they are given fit.

Each raises a ValueError that names the tensor and describes it.
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


# These run at every call of a kernel: attribute look-ups are kept few, views are avoided.


def floats(name: str, x: Tensor) -> tuple[int, int]:
    """The kernels' code for the dtype of x [..., cols], and cols."""
    code = _DTYPE_CODES.get(x.dtype)
    cols = x.shape[-1] if x.ndim else 0
    if code is None or not x.is_cpu or cols == 0:
        raise ValueError(f"{name} is {describe(x)}; wanted a float [..., cols] on the CPU")
    return code, cols


def matrix(name: str, x: Tensor) -> tuple[int, int]:
    """`floats` of x [rows, cols], whose rows are dense."""
    code, cols = floats(name, x)
    if x.ndim != 2 or x.stride(1) != 1:
        raise ValueError(f"{name} is {describe(x)}; wanted [rows, cols] with dense rows")
    return code, cols


def same(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.shape != other.shape or x.dtype != other.dtype or not x.is_cpu:
        raise misfit(name, x, other_name, other)


def vector(name: str, weight: Tensor, x: Tensor, cols: int) -> None:
    """Weight must be a contiguous [cols] of x's dtype."""
    fits = weight.dtype == x.dtype and weight.is_cpu and weight.is_contiguous()
    if not fits or weight.ndim != 1 or weight.numel() != cols:
        raise misfit(name, weight, "x", x)


def gain(name: str, weight: Tensor, x: Tensor, cols: int) -> bool:
    """Whether a norm's weight, a contiguous [cols], is wide: float32, and x is not. Else it must be
    of x's dtype."""
    wide = weight.dtype == torch.float32 != x.dtype
    fits = (wide or weight.dtype == x.dtype) and weight.is_cpu and weight.is_contiguous()
    if not fits or weight.ndim != 1 or weight.numel() != cols:
        raise misfit(name, weight, "x", x)
    return wide


def indices(name: str, x: Tensor) -> int:
    """The length of x, a contiguous int64 [T]."""
    if x.dtype != torch.int64 or not x.is_cpu or x.ndim != 1 or not x.is_contiguous():
        raise ValueError(f"{name} is {describe(x)}; wanted a contiguous int64 [T] on the CPU")
    return x.numel()


def cos_sin_width(x: Tensor, width: int) -> int:
    """The rotary_dim of a table for heads of `width`."""
    if x.dtype != torch.float32 or not x.is_cpu or x.ndim != 2 or not x.is_contiguous():
        raise ValueError(f"cos_sin is {describe(x)}; wanted contiguous float32 [max_len, dim]")
    if x.shape[1] > width or x.shape[1] % 2:
        raise ValueError(f"cos_sin is {describe(x)}; wanted an even width up to {width}")
    return x.shape[1]


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


def dense_rows(x: Tensor, cols: int) -> tuple[Tensor, int]:
    """A tensor to read x's rows from, and their stride; a copy only where no such view exists."""
    if x.is_contiguous():
        return x, cols
    rows = x.reshape(-1, cols)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def like(x: Tensor) -> Tensor:
    """A new contiguous tensor of x's shape; the quickest way that torch has."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def misfit(name: str, x: Tensor, other_name: str, other: Tensor) -> ValueError:
    return ValueError(f"{name} is {describe(x)}, but {other_name} is {describe(other)}")


def describe(t: Tensor) -> str:
    return f"{t.dtype} {list(t.shape)} on {t.device}, strides {list(t.stride())}"
