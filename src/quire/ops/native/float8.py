"""Packing of weights of 8-bit floats for the native kernels, which multiply them as they are."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from quire.core.dtypes import FLOAT8, FLOAT32, DType
from quire.core.quantized import QuantizedWeight
from quire.ops.native.gemm import Form, PackedLinear
from quire.ops.native.kernels import Kernels, Pool


def is_float8(weight: QuantizedWeight) -> bool:
    """Return whether `pack_float8` takes the weight: groups of a multiple of 32, scales only."""
    return (
        weight.codes.dtype in FLOAT8
        and (weight.group % 32 == 0 or weight.group >= weight.shape[1])
        and weight.zero is None
        and weight.offset is None
        and weight.permutation is None
    )


def pack_float8(
    kernels: Kernels,
    pool: Pool,
    weight: QuantizedWeight,
    *,
    dtype: DType = FLOAT32,
    **form: Unpack[Form],
) -> PackedLinear:
    """Pack a weight for which `is_float8` is true, without changing its values.

    x is rounded to bfloat16, never to 8 bits, which would save nothing here: an `input_scale`
    plays no part. `dtype` is that of rows that are looked up.
    """
    k = weight.shape[1]
    group, scale = 0, weight.scale
    if weight.group < k:  # larger groups are cut into several with the same scale
        group = next(size for size in (128, 64, 32) if weight.group % size == 0)
        scale = np.repeat(scale, weight.group // group, axis=1)[:, : -(-k // group)]
    return PackedLinear.from_float8(
        kernels, pool, weight.codes, scale, group=group, dtype=dtype, **form
    )
