"""Packing of weights that are quantized already, as a checkpoint holds them, for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import numpy as np

from quire.core.dtypes import BFLOAT16, FLOAT8, FLOAT32, DType
from quire.core.quantized import QuantizedWeight, can_follow, dense, joined
from quire.ops.native.checks import FLOAT16
from quire.ops.native.codes import GroupedCodes, grouped_codes, int8_rows, together
from quire.ops.native.gemm import Form, PackedLinear, WeightKind
from quire.ops.native.kernels import Kernels, Pool

DENSE_KINDS: dict[DType, WeightKind] = {FLOAT32: "f32", BFLOAT16: "bf16", FLOAT16: "f16"}


def pack_quantized(
    kernels: Kernels,
    pool: Pool,
    parts: Sequence[QuantizedWeight],
    dtype: DType,
    **form: Unpack[Form],
) -> PackedLinear:
    """Return the rows of all parts as one packed weight with unchanged codes.

    Parts of different forms (in a GGUF file Q4_K and Q6_K) take the narrowest that holds all of
    them. `float_activations` are heeded where 8 bits have a scale a row; with groups x is int8.
    What kernels do not know becomes `dtype`, the model's, in which rows are looked up.
    """
    if all(can_follow(parts[0], part) for part in parts[1:]):
        parts = [joined(parts)]
        if is_float8(parts[0]):
            return pack_float8(kernels, pool, parts[0], dtype=dtype, **form)
        rows = int8_rows(parts[0])
        if rows is not None:
            int8: Literal["s8", "s8_a16"] = "s8_a16" if parts[0].float_activations else "s8"
            static = parts[0].input_scale or 0.0
            return PackedLinear.from_int8(
                kernels, pool, *rows, kind=int8, input_scale=static, dtype=dtype, **form
            )
    codes = _codes_of(parts)
    if codes is not None:
        return PackedLinear.from_codes(kernels, pool, codes, dtype=dtype, **form)
    arrays = [dense(part, dtype) for part in parts]
    return PackedLinear(kernels, pool, arrays, kind=DENSE_KINDS[dtype], **form)


def _codes_of(parts: Sequence[QuantizedWeight]) -> GroupedCodes | None:
    found = [codes for part in parts if (codes := grouped_codes(part)) is not None]
    return together(found) if len(found) == len(parts) else None


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
