"""Low-rank adapters on the native kernels: all rows and adapters of a layer in two passes."""

from __future__ import annotations

from torch import Tensor

from quire import _native
from quire.ops.lora import LoraTable
from quire.ops.native import NativeKernels
from quire.ops.native_checks import describe, indices, matrix, misfit


def lora_add(
    kernels: NativeKernels,
    pool: _native.Pool,
    adapter: Tensor,
    y: Tensor,
    x: Tensor,
    table: LoraTable,
) -> Tensor:
    """`ops.lora.lora_add`. A row's bits do not depend on the others, nor on their number.

    Raises ValueError for dtypes, shapes and layouts that do not fit, IndexError for an adapter
    that is not there.
    """
    y_code, n = matrix("y", y)
    code, k = matrix("x", x)
    rows = indices("adapter", adapter)
    if rows == 0:
        return y
    if y_code not in (code, _native.FLOAT32) or x.shape[0] != y.shape[0]:
        raise misfit("x", x, "y", y)
    if rows != y.shape[0]:
        raise misfit("adapter", adapter, "y", y)
    if table.dtype != x.dtype or (table.columns, table.ends[-1]) != (k, n):
        raise ValueError(
            f"the adapters are {table.dtype} [{table.columns}] → [{table.ends[-1]}]; "
            f"x is {describe(x)}, y is {describe(y)}"
        )
    _native.lora_add(
        kernels.handle, pool, code, y_code != code, y.data_ptr(), y.stride(0), x.data_ptr(),
        x.stride(0), table.entries.ctypes.data, len(table.entries), table.ends, adapter.data_ptr(),
        rows, k,
    )  # fmt: skip
    return y
