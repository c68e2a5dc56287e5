"""GGUF's types as targets of quantization."""

from __future__ import annotations

import numpy as np

from quire.checkpoint.gguf_blocks import quantized_arrays
from quire.checkpoint.gguf_types import TYPES
from quire.core.dtypes import BFLOAT16, FLOAT32, Floats, HostArray, converted, dtype_of
from quire.quant.ggml import fitting_type, quantize_rows
from quire.system.records import dataclass

_HALVES = {"F16": dtype_of("float16"), "BF16": BFLOAT16}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows [N, K] in one of GGUF's types, in its file format: uint8 [N, bytes per row]."""

    type: str
    raw: HostArray
    columns: int

    def dequantize(self) -> Floats:
        """Return float32 [N, K]."""
        if self.type in ("F16", "BF16"):
            return converted(self.raw.view(_HALVES[self.type]), FLOAT32)
        raw, type_ = self.raw.reshape(-1), TYPES[self.type]
        return quantized_arrays(raw, type_, len(self.raw), self.columns).dequantize()

    def rows(self, first: int, count: int) -> Blocks:
        """Return rows [first, first + count), as views."""
        return Blocks(self.type, self.raw[first : first + count], self.columns)


class GGUFTarget:
    """One of GGUF's types, or the most similar one that the row length permits."""

    def __init__(self, scheme: str) -> None:
        self._type = scheme.upper()

    def check(self, module: str, columns: int) -> None:
        """Do nothing: every row length fits some type."""

    def type_of(self, columns: int) -> str:
        """Return the type in which rows of `columns` are stored."""
        return self._type if self._type in _HALVES else fitting_type(self._type, columns)

    def nearest(self, weight: Floats) -> Blocks:
        columns = weight.shape[1]
        name = self.type_of(columns)
        if name in _HALVES:
            return Blocks(name, converted(weight, _HALVES[name]).view(np.uint8), columns)
        return Blocks(name, quantize_rows(weight, name), columns)

    def nearest_for(self, weight: Floats, hessian: Floats) -> Blocks:
        """Round as `nearest` does: each GGUF type has its own rule for scales."""
        return self.nearest(weight)

    def gptq(self, weight: Floats, hessian: Floats, *, act_order: bool) -> Blocks:
        raise NotImplementedError("`Recipe` refuses it")
