"""Packing of weights that are quantized already, as a checkpoint holds them, for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor

from quire.ops.native import NativeKernels
from quire.ops.native_gemm import PackedLinear, Pool
from quire.ops.quantized import QuantizedWeight, can_follow, dense, joined
from quire.ops.reference import Epilogue


def is_quantized(
    parts: Sequence[Tensor] | Sequence[QuantizedWeight],
) -> TypeGuard[Sequence[QuantizedWeight]]:
    return isinstance(parts[0], QuantizedWeight)


def pack_quantized(
    kernels: NativeKernels,
    pool: Pool,
    parts: Sequence[QuantizedWeight],
    bias: Tensor | None,
    epilogue: Epilogue,
    dtype: torch.dtype,
) -> PackedLinear:
    """The rows of all parts as one weight, in the smallest form that keeps them.

    What no kernel multiplies as it is becomes `dtype`, the model's, in which rows are looked up.
    """
    if all(can_follow(parts[0], part) for part in parts[1:]):
        whole = joined(parts)
        if _is_int4(whole):
            return PackedLinear.from_int4(
                kernels, pool, whole.codes, whole.scale,
                zero=whole.zero, offset=whole.offset, group=whole.group,
                bias=bias, epilogue=epilogue, dtype=dtype,
            )  # fmt: skip
    kind = "bf16" if dtype == torch.bfloat16 else "f16" if dtype == torch.float16 else "f32"
    return PackedLinear(
        kernels, pool, [dense(part, dtype) for part in parts], bias, kind=kind, epilogue=epilogue
    )


def _is_int4(weight: QuantizedWeight) -> bool:
    return (
        weight.codes.dtype == torch.uint8
        and weight.bits <= 4
        and weight.group in (32, 64, 128)
        and (weight.zero is None) != (weight.offset is None)
        and weight.codebook is None
        and weight.permutation is None
        and weight.input_scale is None
    )
