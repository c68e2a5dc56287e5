"""`core.quantized.QuantizedWeight` on torch's tensors, as the reference computes with it.

    W[n, c(k)] = value(codes[n, k]) · scale[n, g] + offset[n, g]          g = k // group
    W[n, c(k)] = (codes[n, k] − zero[n, g]) · scale[n, g]

value is the codebook's entry where there is one, else the code itself, a small integer or a float
of 8 bits; c(k) is k, or `permutation[k]` where a file's groups are not runs of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.core.dtypes import HostArray
from quire.core.quantized import QuantizedWeight as HostWeight
from quire.ops.torch_ops.arrays import tensor

CODE_TYPES = (torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """Rows of a linear layer's weight [N, K], as a checkpoint holds them but for their layout.

    Attributes:
        codes: [N, K], of one of `CODE_TYPES`; one byte each, however few bits they need.
        bits: what a code needs: 2 to 8; codes are then 0 … 2^bits − 1, or for int8 the signed
            range.
        scale: float32 [N, G], G = ceil(K / group).
        group: columns that share a scale; K where a row has one.
        zero: float32 [N, G], subtracted from the codes before they are scaled; or None.
        offset: float32 [N, G], added behind; or None. Not together with `zero`.
        codebook: float32 [2^bits], what the codes stand for (nf4, e2m1, iq4_nl …); or None.
        permutation: int64 [K], the column of the weight that column k of `codes` is; or None.
        input_scale: of activations quantized statically to the codes' type, as the checkpoint
            calibrated it; None where they are not, or each row by itself.
        float_activations: the checkpoint quantizes 8-bit weights alone (W8A16); else a provider
            may round activations to 8 bits (W8A8).
    """

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

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.dtype not in CODE_TYPES:
            raise ValueError(f"codes are {self.codes.dtype} {list(self.codes.shape)}")
        n, k = self.codes.shape
        wanted = (n, -(-k // self.group))
        for name in ("scale", "zero", "offset"):
            t = getattr(self, name)
            if t is not None and (t.dtype != torch.float32 or t.shape != wanted):
                raise ValueError(f"{name} is {t.dtype} {list(t.shape)}; wanted {list(wanted)}")
        if self.zero is not None and self.offset is not None:
            raise ValueError("a weight has zero points or offsets, not both")
        if self.codebook is not None and len(self.codebook) != 1 << self.bits:
            raise ValueError(f"the codebook has {len(self.codebook)} entries for {self.bits} bits")
        if self.permutation is not None and self.permutation.shape != (k,):
            raise ValueError(f"the permutation has shape {list(self.permutation.shape)}")

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.codes.shape
        return n, k

    def dequantize(self) -> Tensor:
        """float32 [N, K], columns in the weight's order; every operation rounds to float32."""
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
        """The same on a device."""
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
    """The weight as `dtype`, whatever form it has."""
    return (weight.dequantize() if isinstance(weight, QuantizedWeight) else weight).to(dtype)
