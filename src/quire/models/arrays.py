"""From a checkpoint's arrays to tensors on the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.checkpoint.quantized import QuantizedArrays
from quire.ops.quantized import QuantizedWeight


def as_tensor(values: npt.NDArray[Any], *, bfloat16: bool = False) -> Tensor:
    """The array as a tensor on the same memory; `bfloat16` says that it holds such bits."""
    if not values.flags.writeable:
        values = values.copy()
    if bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def as_quantized(arrays: QuantizedArrays, *, float_activations: bool = False) -> QuantizedWeight:
    """The quantized weight; `float_activations` as `QuantizedWeight` has it."""

    def tensor(values: npt.NDArray[Any] | None) -> Tensor | None:
        return None if values is None else as_tensor(values)

    return QuantizedWeight(
        as_tensor(arrays.codes).view(getattr(torch, arrays.code_type)),
        arrays.bits,
        as_tensor(arrays.scale),
        arrays.group,
        tensor(arrays.zero),
        tensor(arrays.offset),
        tensor(arrays.codebook),
        tensor(arrays.permutation),
        arrays.input_scale,
        float_activations,
    )
