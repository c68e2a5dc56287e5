"""bitsandbytes: 4 bits in blocks (QLoRA, Dettmers and others 2023), and LLM.int8().

    4 bits   weight              U8 [N · K / 2, 1]   two codes per byte, the first in its high half
             weight.absmax       F32 per block of 64 weights, or U8 if it is quantized itself:
             weight.nested_absmax, weight.nested_quant_map     F32 per block of 256 of those
             weight.quant_map    F32 [16]
             weight.quant_state.bitsandbytes__nf4 (or fp4)     JSON
    int8     weight I8 [N, K], SCB F32 [N], weight_format U8

    W = quant_map[code] · absmax          W = weight · SCB / 127

Blocks run through the flattened weight. If rows are not a multiple of a block, groups have the
greatest common divisor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from quire.core.dtypes import HostArray
from quire.core.quantization import Form
from quire.core.quantized import QuantizedWeight
from quire.quant.bits import nibbles
from quire.quant.fields import Fields, Uniform
from quire.quant.scheme import FLOATS, Stored
from quire.system.records import dataclass

BLOCK = 64
_STATE = "weight.quant_state.bitsandbytes__"


@dataclass(frozen=True, slots=True)
class Bnb4:
    """`kind` is nf4 or fp4."""

    kind: str = "nf4"

    def form(self, columns: int) -> Form:
        return Form("uint8", 4, math.gcd(BLOCK, columns), codebook=self.kind)

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        if rows * columns % 2:
            raise ValueError(f"{rows} × {columns} codes do not fill bytes")
        size = rows * columns // 2
        blocks = -(-rows * columns // BLOCK)
        shapes = tuple((size // item, 1) for item in (1, 2, 4) if size % item == 0)
        return {
            # The dtype depends on how it was sharded; the bytes are the same.
            "weight": Stored(("U8", "BF16", "F16", "F32"), shapes, raw=True),
            "weight.absmax": Stored(("F32", "U8"), ((blocks,),), raw=True),
            "weight.quant_map": Stored(("F32",), ((16,),)),
            _STATE + self.kind: Stored(("U8",), raw=True),
            "weight.nested_absmax": Stored(("F32",), optional=True),
            "weight.nested_quant_map": Stored(("F32",), ((256,),), optional=True),
        }

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        state = _state(tensors[_STATE + self.kind], [rows, columns])
        packed = np.ascontiguousarray(tensors["weight"]).view(np.uint8).reshape(-1)
        if len(packed) * 2 != rows * columns:
            raise ValueError(f"weight has {len(packed)} bytes")
        turned = ((packed >> 4) | (packed << 4)).view(np.uint8)
        codes = nibbles(turned).reshape(rows, columns)
        absmax = tensors["weight.absmax"]
        if absmax.dtype == np.uint8:
            absmax = _nested(absmax, tensors, state)
        group = math.gcd(BLOCK, columns)
        starts = np.arange(rows * columns // group) * group
        scale = absmax[starts // BLOCK].reshape(rows, -1)
        book = tensors["weight.quant_map"].astype(np.float32)
        return QuantizedWeight(codes, 4, scale, group, codebook=book)


def _state(raw: HostArray, shape: list[int]) -> dict[str, Any]:
    try:
        state = json.loads(raw.tobytes())
        blocks, stored = state["blocksize"], state["shape"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the quant_state cannot be read ({error!r})") from None
    if blocks != BLOCK or stored != shape:
        raise ValueError(
            f"the quant_state has blocksize {blocks} and shape {stored}; wanted {BLOCK}, {shape}"
        )
    return dict(state)


def _nested(
    absmax: HostArray, tensors: Mapping[str, HostArray], state: dict[str, Any]
) -> HostArray:
    try:
        size, offset = int(state["nested_blocksize"]), float(state["nested_offset"])
        book, scale = tensors["weight.nested_quant_map"], tensors["weight.nested_absmax"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"absmax is quantized, but {error} is missing") from None
    if size < 1 or scale.shape != (-(-len(absmax) // size),):
        raise ValueError(f"nested_absmax has shape {list(scale.shape)} for blocks of {size}")
    by_block = scale[np.arange(len(absmax)) // size]
    absmax = book[absmax] * by_block + np.float32(offset)
    return absmax.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Bnb8:
    """One scale per row. All activations stay floats, so outliers need no treatment as in
    LLM.int8()."""

    def form(self, columns: int) -> Form:
        return Form("int8", 8, columns, float_activations=True)

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        return {
            "weight": Stored(("I8",), ((rows, columns),), raw=True),
            "SCB": Stored(FLOATS, ((rows,),)),
            "weight_format": Stored(("U8",), ((), (1,)), optional=True, raw=True),
        }

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        layout = tensors.get("weight_format")
        if layout is not None and layout.any():
            raise ValueError("weight_format is not 0, rows")
        scale = (tensors["SCB"] * np.float32(1 / 127)).reshape(rows, 1)
        return QuantizedWeight(tensors["weight"], 8, scale, columns)


def bitsandbytes_method(config: Mapping[str, Any]) -> Uniform:
    """Return the method of quant_method bitsandbytes."""
    fields = Fields(config)
    four = any(fields.boolean(n, default=False) for n in ("load_in_4bit", "_load_in_4bit"))
    eight = any(fields.boolean(n, default=False) for n in ("load_in_8bit", "_load_in_8bit"))
    if four == eight:
        raise fields.wrong("load_in_4bit", "true, or load_in_8bit must be true")
    kind = fields.choice("bnb_4bit_quant_type", {"nf4": "nf4", "fp4": "fp4"}, "fp4")
    dense = fields.strings("llm_int8_skip_modules")
    fields.skip(
        "quant_method", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage",
        "bnb_4bit_use_double_quant", "llm_int8_threshold", "llm_int8_has_fp16_weight",
        "llm_int8_enable_fp32_cpu_offload", "_load_in_4bit", "_load_in_8bit",
    )  # fmt: skip
    fields.done()
    return Uniform("bitsandbytes", Bnb4(kind) if four else Bnb8(), (*dense, "lm_head"))
