"""Quantized weights on torch's tensors, as the reference dequantizes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.core.dtypes import HostArray
from quire.core.quantized import QuantizedWeight as HostWeight
from quire.ops.torch_ops.arrays import tensor
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """`core.quantized.QuantizedWeight` with tensors for arrays. Both dequantize alike."""

    codes: Tensor
    bits: int
    scale: Tensor
    group: int
    zero: Tensor | None = None
    offset: Tensor | None = None
    codebook: Tensor | None = None
    permutation: Tensor | None = None
    input_scale: float | None = None
    float_activations: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.codes.shape
        return n, k

    def dequantize(self) -> Tensor:
        """Return float32 [N, K], columns in the weight's order; each operation rounds once."""
        n, k = self.shape
        if self.codebook is not None:
            values = self.codebook[self.codes.to(torch.int64)]
        else:
            values = self.codes.to(torch.float32)
        if self.zero is not None:
            values = values - self._by_column(self.zero)
        values = values * self._by_column(self.scale)
        if self.offset is not None:
            values = values + self._by_column(self.offset)
        if self.permutation is None:
            return values
        dense = values.new_empty(n, k)
        dense[:, self.permutation] = values
        return dense

    def to(self, device: torch.device) -> QuantizedWeight:
        """Return the weight on a device."""
        if self.codes.device == device:
            return self
        names = ("codes", "scale", "zero", "offset", "codebook", "permutation")
        given = {name: getattr(self, name) for name in names}
        return replace(self, **{n: t.to(device) for n, t in given.items() if t is not None})

    def _by_column(self, numbers: Tensor) -> Tensor:
        return numbers.repeat_interleave(self.group, dim=1)[:, : self.codes.shape[1]]


Weight = Tensor | QuantizedWeight
HostWeights = HostArray | HostWeight | Sequence[HostArray] | Sequence[HostWeight]
Weights = Weight | Sequence[Tensor] | Sequence[QuantizedWeight] | HostWeights
"""One weight, or parts of one whose rows follow each other."""


def parts_of(weight: Weights) -> list[Tensor] | list[QuantizedWeight]:
    """Return the parts of a weight as tensors."""
    one = isinstance(weight, (Tensor, QuantizedWeight, np.ndarray, HostWeight))
    parts: Any = [weight] if one else weight
    return [_on_tensors(part) for part in parts]


def _on_tensors(part: Weight | HostArray | HostWeight) -> Any:
    if isinstance(part, np.ndarray):
        return tensor(part)
    if not isinstance(part, HostWeight):
        return part
    values: dict[str, Any] = {field.name: getattr(part, field.name) for field in fields(part)}
    arrays = {name: tensor(v) for name, v in values.items() if isinstance(v, np.ndarray)}
    return QuantizedWeight(**{**values, **arrays})


def dense(weight: Tensor | QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return the weight as a tensor of `dtype`."""
    return (weight.dequantize() if isinstance(weight, QuantizedWeight) else weight).to(dtype)
