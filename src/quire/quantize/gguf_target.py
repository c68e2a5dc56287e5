"""GGUF's types, as the methods see them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.checkpoint.gguf_blocks import quantized_arrays
from quire.checkpoint.gguf_types import TENSOR_TYPES
from quire.ops.torch_arrays import array
from quire.quant.ggml import fitting_type, quantize_rows

_TYPES = {type_.name: type_ for type_ in TENSOR_TYPES.values()}
_HALVES = {"F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows [N, K] in one of GGUF's types, as its files have them: uint8 [N, bytes of a row]."""

    type: str
    raw: Tensor
    columns: int

    def dequantize(self) -> Tensor:
        """float32 [N, K]."""
        if self.type in ("F16", "BF16"):
            return self.raw.view(_HALVES[self.type]).float()
        arrays = quantized_arrays(
            self.raw.reshape(-1).numpy(), _TYPES[self.type], len(self.raw), self.columns
        )
        return torch.from_numpy(arrays.dequantize())

    def rows(self, first: int, count: int) -> Blocks:
        """Rows [first, first + count), as views."""
        return Blocks(self.type, self.raw[first : first + count], self.columns)


class GGUFTarget:
    """One of GGUF's types, or the one nearest to it that a row's length allows."""

    def __init__(self, scheme: str) -> None:
        self._type = scheme.upper()

    def check(self, module: str, columns: int) -> None:
        """Any row fits some type."""

    def type_of(self, columns: int) -> str:
        """The type in which rows of `columns` are stored."""
        return self._type if self._type in _HALVES else fitting_type(self._type, columns)

    def nearest(self, weight: Tensor) -> Blocks:
        columns = weight.shape[1]
        name = self.type_of(columns)
        if name in _HALVES:
            return Blocks(name, weight.to(_HALVES[name]).view(torch.uint8), columns)
        return Blocks(name, torch.from_numpy(quantize_rows(array(weight), name)), columns)

    def nearest_for(self, weight: Tensor, hessian: Tensor) -> Blocks:
        """The types choose their scales by rules of their own."""
        return self.nearest(weight)

    def gptq(self, weight: Tensor, hessian: Tensor, *, act_order: bool) -> Blocks:
        raise NotImplementedError("`Recipe` refuses it")
