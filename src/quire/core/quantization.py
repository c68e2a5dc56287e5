"""Ways to quantize linear weights while loading, by the names that --quantization takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Quantization:
    """How linear weights are packed; `ops.native_gemm` says what the kinds are.

    Attributes:
        kind: of the layers' weights.
        head: of the output projection, whose errors reach the logits undiluted.
        group: weights along the input that share a scale, where there are groups.
    """

    kind: Literal["s8", "s8_a16", "u4"]
    head: Literal["s8", "s8_a16"] = "s8"
    group: int = 128


QUANTIZATIONS: dict[str, Quantization] = {
    "int8": Quantization("s8"),
    "int8_w8a16": Quantization("s8_a16", "s8_a16"),
    "int4": Quantization("u4"),
    "int4_g32": Quantization("u4", group=32),
    "int4_g64": Quantization("u4", group=64),
    "int4_g128": Quantization("u4", group=128),
}
