"""Triton's interpreter runs the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def exact_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the interpreter sum products in float64.

    Its own sums depend on where a row stands in its tile, which a matrix unit's do not, and it
    reads bfloat16 and 8-bit floats as integers. It also warns of NaN, which kernels may compute in
    lanes that they drop.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    def numbers(handle: Any) -> Any:
        if handle.dtype == tl.bfloat16:
            return (handle.data.astype(np.uint32) << 16).view(np.float32)
        if handle.dtype == tl.float8e4nv:
            return handle.data.view(ml_dtypes.float8_e4m3fn)
        return handle.data

    def dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        exact = numbers(a).astype(np.float64) @ numbers(b).astype(np.float64) + d.data
        return interpreter.TensorHandle(exact.astype(d.data.dtype), d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
    with np.errstate(all="ignore"):
        yield
