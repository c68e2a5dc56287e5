"""Quantized linear weights in plain terms: what the canonical form is, and the ways to quantize
that the native kernels' packing has itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CodeType = Literal["uint8", "int8", "float8_e4m3fn", "float8_e5m2"]


@dataclass(frozen=True, slots=True)
class Form:
    """The canonical form of a quantized weight (`ops.quantized`) but for its numbers.

    Attributes:
        codes: the codes' type.
        bits: what a code needs.
        group: columns that share a scale.
        second: what else a group has: a zero point, which may be in the middle of the codes of
            all groups, or an offset.
        codebook: name in `quant.codebooks` of what the codes stand for; "" for themselves.
        permuted: groups are not runs of columns.
        float_activations: weights of 8 bits whose activations are left alone.
    """

    codes: CodeType
    bits: int
    group: int
    second: Literal["", "zero", "middle", "offset"] = ""
    codebook: str = ""
    permuted: bool = False
    float_activations: bool = False


@dataclass(frozen=True, slots=True)
class Quantization:
    """How linear weights are packed; `ops.native_gemm` says what the kinds are.

    Attributes:
        kind: of the layers' weights.
        head: of the output projection, whose errors reach the logits undiluted.
        group: weights along the input that share a scale, where there are groups.
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
"""What packing itself can round to; `quant.names` has all names that --quantization takes."""
