"""Packing of weights that are quantized already, as a checkpoint holds them, for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

from quire.core.dtypes import BFLOAT16, FLOAT32, DType
from quire.core.quantized import QuantizedWeight, can_follow, dense, joined
from quire.ops.native.checks import FLOAT16
from quire.ops.native.codes import GroupedCodes, grouped_codes, int8_rows, together
from quire.ops.native.float8 import is_float8, pack_float8
from quire.ops.native.gemm import Form, PackedLinear, WeightKind
from quire.ops.native.kernels import Kernels, Pool

DENSE_KINDS: dict[DType, WeightKind] = {
    FLOAT32: "f32",
    BFLOAT16: "bf16",
    FLOAT16: "f16",
}


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
