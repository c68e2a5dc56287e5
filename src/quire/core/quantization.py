"""Quantized linear weights: their canonical form, and the quantizations of the native packing."""

from __future__ import annotations

from typing import Literal

from quire.system.records import dataclass

CodeType = Literal["uint8", "int8", "float8_e4m3fn", "float8_e5m2"]


@dataclass(frozen=True, slots=True)
class Form:
    """The canonical form of a quantized weight (`core.quantized`), without its data.

    Attributes:
        codes: the codes' type.
        bits: bits per code.
        group: columns that share a scale.
        second: a group's second parameter: a zero point, a zero point in the middle of the codes
            for all groups, or an offset.
        codebook: name in `quant.codebooks` of the codes' values; "" if codes are the values.
        permuted: groups are not runs of columns.
        float_activations: 8-bit weights whose activations are not quantized.
    """

    codes: CodeType
    bits: int
    group: int
    second: Literal["", "zero", "middle", "offset"] = ""
    codebook: str = ""
    permuted: bool = False
    float_activations: bool = False


DECODED_ROWS = 256
"""From so many rows on, `ops.triton` decodes a quantized weight into memory of its own, and not in
each tile."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How linear weights are packed; `ops.native.gemm` explains the kinds.

    Attributes:
        kind: for the layers' weights.
        head: for the output projection, whose errors reach the logits directly.
        group: weights along the input that share a scale, for 4 bits.
    """

    kind: Literal["s8", "s8_a16", "u4"]
    head: Literal["s8", "s8_a16", "u6"] = "s8"
    group: int = 128


QUANTIZATIONS: dict[str, Quantization] = {
    "int8": Quantization("s8"),
    "int8_w8a16": Quantization("s8_a16", "s8_a16"),
    "int4": Quantization("u4", "u6"),
    "int4_g32": Quantization("u4", "u6", group=32),
    "int4_g64": Quantization("u4", "u6", group=64),
    "int4_g128": Quantization("u4", "u6", group=128),
}
"""Quantizations that packing itself applies; `quant.names` has all names of --quantization."""
