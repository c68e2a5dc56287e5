"""Ternary weights as BitNet publishes them, four to a byte.

weight U8 [N / 4, K], weight_scale [1]; bits 2i and 2i + 1 of row r are row i · N / 4 + r

W[n, k] = (code − 1) · weight_scale     ("linear_class": "autobitlinear", as published)
W[n, k] = (code − 1) / weight_scale     ("bitlinear", Transformers' default)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quire.core.dtypes import HostArray
from quire.core.quantization import Form
from quire.core.quantized import QuantizedWeight
from quire.quant.fields import Fields, Uniform
from quire.quant.scheme import FLOATS, Stored
from quire.system.records import dataclass

_PER_BYTE = 4


@dataclass(frozen=True, slots=True)
class Ternary:
    """One scale per tensor, which multiplies or divides the codes."""

    divides: bool

    def form(self, columns: int) -> Form:
        return Form("int8", 2, columns)

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        if rows % _PER_BYTE:
            raise ValueError(f"{rows} rows are no multiple of {_PER_BYTE}")
        return {
            "weight": Stored(("U8",), ((rows // _PER_BYTE, columns),), raw=True),
            "weight_scale": Stored(FLOATS, ((1,), ())),
        }

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        packed = tensors["weight"]
        codes = np.concatenate([packed >> (2 * i) & 3 for i in range(_PER_BYTE)]).view(np.int8)
        if codes.max() > 2:
            raise ValueError("a code is 3; codes are 0, 1 and 2")
        scale = tensors["weight_scale"].reshape(1, 1).astype(np.float32)
        scale = np.repeat(1 / scale if self.divides else scale, rows, axis=0)
        return QuantizedWeight(codes - np.int8(1), 2, scale, columns)


def bitnet_method(config: Mapping[str, Any]) -> Uniform:
    """Return BitNet's method. Activations are rounded to 8 bits row by row, as there."""
    fields = Fields(config)
    kinds = {"bitlinear": Ternary(divides=True), "autobitlinear": Ternary(divides=False)}
    scheme = fields.choice("linear_class", kinds, "bitlinear")
    fields.choice("quantization_mode", {"offline": True}, "offline")
    fields.choice("use_rms_norm", {False: True}, default=False)
    dense = fields.strings("modules_to_not_convert")
    fields.skip("quant_method", "rms_norm_eps")
    fields.done()
    return Uniform("bitnet", scheme, (*dense, "lm_head"))
