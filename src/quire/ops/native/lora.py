"""Low-rank adapters on the native kernels: all rows and adapters of a layer in two passes."""

from __future__ import annotations

from quire import _native
from quire.core.dtypes import HostArray
from quire.ops.array import address
from quire.ops.lora import LoraTable
from quire.ops.native.checks import describe, indices, matrix
from quire.ops.native.kernels import OnPool


class LoraKernels(OnPool):
    """The op of low-rank adapters."""

    def lora_add(
        self, adapter: HostArray, y: HostArray, x: HostArray, table: LoraTable
    ) -> HostArray:
        """`Ops.lora_add`. A row's bits do not depend on the others, nor on their number.

        Raises ValueError for dtypes, shapes and layouts that do not fit, IndexError for an adapter
        that is not there.
        """
        y_rows, x_rows, numbers = matrix("y", y), matrix("x", x), indices("adapter", adapter)
        if adapter.size == 0:
            return y
        if table.dtype != x.dtype or (table.columns, table.ends[-1]) != (x.shape[1], y.shape[1]):
            raise ValueError(
                f"the adapters are {table.dtype} [{table.columns}] → [{table.ends[-1]}]; "
                f"x is {describe(x)}, y is {describe(y)}"
            )
        _native.lora_add(
            self._kernels, self._pool, y_rows, x_rows, address(table.entries), len(table.entries),
            table.ends, numbers,
        )  # fmt: skip
        return y
