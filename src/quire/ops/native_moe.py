"""A mixture of experts on the native kernels: each expert's weights are read once a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire import _native
from quire.core.dtypes import FLOAT32, HostArray
from quire.ops.array import address
from quire.ops.native import NativeKernels
from quire.ops.native_checks import INT64, contiguous, describe, view
from quire.ops.native_gemm import PackedLinear


class NativeExperts:
    """Experts packed one by one."""

    def __init__(self, parts: Sequence[PackedLinear]) -> None:
        self.parts = list(parts)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.parts[0].shape
        return len(self.parts) * rows, columns

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def moe(
    kernels: NativeKernels,
    pool: _native.Pool,
    x: HostArray,
    experts: HostArray,
    weights: HostArray,
    gate_up: Sequence[PackedLinear],
    down: Sequence[PackedLinear],
) -> HostArray:
    """`Ops.moe`. A row's bits do not depend on the others, nor on their number.

    Raises ValueError for dtypes, shapes and layouts that do not fit, IndexError for an expert
    that is not there.
    """
    rows = contiguous("x", x, 2)
    _check_experts(gate_up, down, x.shape[1])
    for name, t, dtype in (("experts", experts, INT64), ("weights", weights, FLOAT32)):
        fits = t.dtype == dtype and t.flags.c_contiguous and t.ndim == 2
        if not fits or t.shape != experts.shape or t.shape[0] != x.shape[0]:
            raise ValueError(f"{name} is {describe(t)}; wanted contiguous {dtype} [T, top_k]")
    y = np.empty(x.shape, x.dtype)
    _native.moe(
        kernels.handle, pool, [e.packed for e in gate_up], [e.packed for e in down], view(y), rows,
        address(experts), view(weights),
    )  # fmt: skip
    return y


def _check_experts(
    gate_up: Sequence[PackedLinear], down: Sequence[PackedLinear], hidden: int
) -> None:
    if not gate_up or len(gate_up) != len(down):
        raise ValueError(f"{len(gate_up)} experts' gate_up and {len(down)} experts' down")
    width = gate_up[0].columns
    for up, out in zip(gate_up, down, strict=True):
        if (up.columns, up.shape[1]) != (width, hidden) or up.epilogue != "silu_mul":
            raise ValueError(
                f"an expert's gate_up is {up}; wanted silu_mul [{2 * width}, {hidden}]"
            )
        if out.shape != (hidden, width) or out.epilogue != "none":
            raise ValueError(f"an expert's down is {out}; wanted [{hidden}, {width}]")
