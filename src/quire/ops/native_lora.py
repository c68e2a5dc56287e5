"""Low-rank adapters on the native kernels: all rows and adapters of a layer in two passes."""

from __future__ import annotations

import torch
from torch import Tensor

from quire import _native
from quire.ops.native import NativeKernels
from quire.ops.native_checks import describe, indices, matrix, misfit


def lora_add(
    kernels: NativeKernels,
    pool: _native.Pool,
    y: Tensor,
    x: Tensor,
    a: Tensor,
    b: Tensor,
    adapter: Tensor,
) -> Tensor:
    """`ops.lora.lora_add`. A row's bits do not depend on the others, nor on their number.

    Raises ValueError for dtypes, shapes and layouts that do not fit, IndexError for an adapter
    that is not there.
    """
    code, n = matrix("y", y)
    x_code, k = matrix("x", x)
    rows = indices("adapter", adapter)
    if x_code != code or x.shape[0] != y.shape[0]:
        raise misfit("x", x, "y", y)
    if rows != y.shape[0]:
        raise misfit("adapter", adapter, "y", y)
    for name, part, width in (("a", a, k), ("b", b, n)):
        fits = part.dtype == y.dtype and part.is_cpu and part.is_contiguous() and part.ndim == 3
        if not fits or part.shape[2] != width or part.shape[:2] != a.shape[:2]:
            raise ValueError(
                f"{name} is {describe(part)}; wanted contiguous {y.dtype} [adapters, R, {width}]"
            )
    if rows == 0 or a.shape[1] == 0:
        return y
    if (most := int(torch.max(adapter))) >= a.shape[0]:
        raise IndexError(f"adapter {most} of {a.shape[0]}")
    _native.lora_add(
        kernels.handle, pool, code, y.data_ptr(), y.stride(0), x.data_ptr(), x.stride(0),
        a.data_ptr(), b.data_ptr(), adapter.data_ptr(), rows, k, n, a.shape[1],
    )  # fmt: skip
    return y
