"""The native CPU kernels on torch tensors. Only `ops` imports `quire._native`.

Each method checks what the kernels cannot (device, dtype, shape, layout), and passes addresses on.
"""

import torch
from torch import Tensor

from quire import _native
from quire.ops.isa import available_isas, cpu_features, emulated_isas

__all__ = ["NativeKernels", "available_isas", "cpu_features", "emulated_isas"]

_DTYPE_CODES = {
    torch.float32: _native.FLOAT32,
    torch.bfloat16: _native.BFLOAT16,
    torch.float16: _native.FLOAT16,
}


class NativeKernels:
    """The kernels of one instruction set.

    `isa` is a name out of `available_isas()`; without one, the most capable is taken. Raises
    ValueError, naming what is available, for one that is unknown or that this machine lacks.
    """

    def __init__(self, isa: str | None = None) -> None:
        self._kernels = _native.table(isa if isa is not None else _native.detect()[-1])

    def __repr__(self) -> str:
        return f"NativeKernels({self.isa!r})"

    @property
    def handle(self) -> _native.Kernels:
        """The table itself, for the other modules of native kernels."""
        return self._kernels

    @property
    def isa(self) -> str:
        """Name of the instruction set."""
        return self._kernels.isa

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None
    ) -> Tensor:
        """Root mean square normalization of the last dimension, as Llama defines it.

        x is [..., cols] and weight [cols], both float32, bfloat16 or float16 on the CPU. The
        result has x's shape and dtype and goes into `out` (contiguous; may be x) if given.
        Raises ValueError for other dtypes, devices, shapes and layouts.
        """
        dtype, cols = _check(x, weight)
        y = _output(out, x)
        x, x_stride = _rows(x, cols)
        self._kernels.rms_norm(
            dtype,
            y.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            x.numel() // cols,
            cols,
            cols,
            x_stride,
            eps,
        )
        return y

    def add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        *,
        out: Tensor | None = None,
        residual_out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`(rms_norm(x + residual), x + residual)` in one pass; the sum is rounded to the dtype.

        x and residual are [..., cols] and weight [cols], all of one dtype: float32, bfloat16 or
        float16 on the CPU. The results go into `out` and `residual_out` if given: contiguous,
        apart from each other; either may be x or residual. Raises ValueError for other dtypes,
        devices, shapes and layouts.
        """
        dtype, cols = _check(x, weight)
        if residual.shape != x.shape or residual.dtype != x.dtype or not residual.is_cpu:
            raise ValueError(f"residual is {_describe(residual)}, but x is {_describe(x)}")
        y, total = _output(out, x), _output(residual_out, x)
        if y.data_ptr() == total.data_ptr() and x.numel() > 0:
            raise ValueError("out and residual_out are the same memory")
        x, x_stride = _rows(x, cols)
        residual, residual_stride = _rows(residual, cols)
        self._kernels.add_rms_norm(
            dtype,
            y.data_ptr(),
            total.data_ptr(),
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            x.numel() // cols,
            cols,
            cols,
            cols,
            x_stride,
            residual_stride,
            eps,
        )
        return y, total


# These run at every call of a kernel: attribute look-ups are kept few, views are avoided.


def _check(x: Tensor, weight: Tensor) -> tuple[int, int]:
    """The kernels' code for x's dtype and x's last size, once x and weight are seen to fit."""
    dtype = x.dtype
    code = _DTYPE_CODES.get(dtype)
    cols = x.shape[-1] if x.ndim else 0
    if code is None or not x.is_cpu or cols == 0:
        raise ValueError(f"x is {_describe(x)}; wanted a float [..., cols] on the CPU")
    fits = weight.dtype == dtype and weight.is_cpu and weight.is_contiguous()
    if not fits or weight.ndim != 1 or weight.numel() != cols:
        raise ValueError(f"weight is {_describe(weight)}, but x is {_describe(x)}")
    return code, cols


def _rows(x: Tensor, cols: int) -> tuple[Tensor, int]:
    """A tensor to read x's rows from, and their stride; a copy only where no such view exists."""
    if x.is_contiguous():
        return x, cols
    rows = x.reshape(-1, cols)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def _output(out: Tensor | None, x: Tensor) -> Tensor:
    """`out`, once it is seen to fit x, or a new tensor."""
    if out is None:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.shape != x.shape or out.dtype != x.dtype or not out.is_cpu or not out.is_contiguous():
        raise ValueError(f"out is {_describe(out)}, but x is {_describe(x)}; wanted it contiguous")
    return out


def _describe(t: Tensor) -> str:
    return f"{t.dtype} {list(t.shape)} on {t.device}, strides {list(t.stride())}"
