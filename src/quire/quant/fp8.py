"""Weights of 8-bit floats, as Hugging Face's fp8 and fbgemm_fp8, AutoFP8 and DeepSeek store them.

    weight             F8_E4M3 or F8_E5M2 [N, K]
    weight_scale_inv   float [N / 128, K / 128]: one scale per block, not its inverse
    weight_scale       float, one for all, [N] or [N, 1]; AutoFP8 and fbgemm
    weight_scale_inv   float, one for all, no inverse either; Hugging Face's fp8 without blocks
    input_scale        float, for static quantization of activations; unused

    W[n, k] = weight · scale

CPUs do not round activations: none multiplies 8-bit floats, so rounding would only lose accuracy.
GPUs that multiply them round activations to E4M3, by row, if weights have one scale per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quire.core.dtypes import HostArray, dtype_of
from quire.core.quantization import CodeType, Form
from quire.core.quantized import QuantizedWeight
from quire.quant.fields import Fields, Uniform
from quire.quant.scheme import FLOATS, Shape, Stored
from quire.system.records import dataclass

_TYPES: dict[str, CodeType] = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_SCALES = (*FLOATS, "F8_E8M0", "U8")
"""U8 holds E8M0's bits, powers of two."""


@dataclass(frozen=True, slots=True)
class Fp8:
    """8-bit floats.

    Attributes:
        dtype: "F8_E4M3" or "F8_E5M2".
        block: rows and columns that share a scale; None for one scale per row, or one for all.
        scales: suffixes that the scales may have; there is one.
        float_activations: see `Form`.
    """

    dtype: str = "F8_E4M3"
    block: tuple[int, int] | None = None
    scales: tuple[str, ...] = ("weight_scale",)
    float_activations: bool = False

    def form(self, columns: int) -> Form:
        group, wide = self.block[1] if self.block else columns, self.float_activations
        return Form(_TYPES[self.dtype], 8, group, float_activations=wide)

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        shapes: tuple[Shape, ...] = ((), (1,), (1, 1), (rows,), (rows, 1))
        if self.block:
            shapes = ((-(-rows // self.block[0]), -(-columns // self.block[1])),)
        return {
            "weight": Stored((self.dtype,), ((rows, columns),), raw=True),
            **{name: Stored(_SCALES, shapes, len(self.scales) > 1) for name in self.scales},
            "input_scale": Stored(FLOATS, ((), (1,)), optional=True),
            "activation_scale": Stored(FLOATS, ((), (1,)), optional=True),
            "input_scale_ub": Stored(FLOATS, ((), (1,)), optional=True),
        }

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        scale, group = self._scale(tensors), columns
        if self.block:
            scale = np.repeat(scale, self.block[0], axis=0)[:rows]
            group = self.block[1]
        else:
            scale = np.broadcast_to(scale.reshape(-1, 1), (rows, 1))
        codes = tensors["weight"].view(dtype_of(_TYPES[self.dtype]))
        wide = self.float_activations
        return QuantizedWeight(codes, 8, np.ascontiguousarray(scale), group, float_activations=wide)

    def _scale(self, tensors: Mapping[str, HostArray]) -> HostArray:
        found = [tensors[name] for name in self.scales if name in tensors]
        if len(found) != 1:
            raise ValueError(f"it has {len(found)} of the scales {', '.join(self.scales)}")
        return found[0]


def fp8_method(config: Mapping[str, Any]) -> Uniform:
    fields = Fields(config)
    name = str(fields.raw("quant_method"))
    fields.choice("activation_scheme", {"dynamic": True, "static": True}, "dynamic")
    dtype = fields.choice("fmt", {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}, "e4m3")
    fields.choice("scale_fmt", {"float": True, "ue8m0": True}, "float")
    block = _block(fields, name)
    scales = ("weight_scale_inv",) if block else ("weight_scale", "weight_scale_inv")
    dense = fields.strings("modules_to_not_convert") + fields.strings("ignored_layers")
    fields.skip("dequantize", "expert_dtype", "activation_scale_ub", "kv_cache_scheme", "export")
    fields.done()
    return Uniform(name, Fp8(dtype, block, scales), (*dense, "lm_head"))


def _block(fields: Fields, method: str) -> tuple[int, int] | None:
    if method == "mxfp8":
        fields.skip("weight_block_size")
        return 1, 32
    size = fields.raw("weight_block_size", ())
    if not size:
        return None
    return fields.extents("weight_block_size", size, "two positive integers, or null")
