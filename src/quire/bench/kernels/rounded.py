"""Ops whose linear weights are rounded to a `--quantization`."""

from __future__ import annotations

from typing import Any

from quire.core.dtypes import HostArray
from quire.core.quantization import QUANTIZATIONS
from quire.ops.interface import Ops
from quire.ops.providers import load_ops
from quire.ops.weights import LinearWeight
from quire.quant.names import rounding


def load_rounded(isa: str, threads: int, quantization: str | None) -> Ops:
    """Return the native ops. Weights are rounded while they are packed, or before."""
    if quantization is None or quantization in QUANTIZATIONS:
        return load_ops("cpu", isa, threads, quantization)
    return rounded(load_ops("cpu", isa, threads), quantization)


def rounded(ops: Ops, quantization: str | None) -> Ops:
    """Return ops that round dense weights before they pack them."""
    if quantization is None:
        return ops
    found = rounding(quantization)

    def pack_linear(
        weight: HostArray | list[HostArray], *args: Any, head: bool = False, **rest: Any
    ) -> LinearWeight:
        rounder = found.head if head else found.layers
        if rounder is None:
            return ops.pack_linear(weight, *args, head=head, **rest)
        parts = weight if isinstance(weight, list) else [weight]
        quantized = [rounder.quantize(part) for part in parts]
        return ops.pack_linear(quantized, *args, head=head, dtype=parts[0].dtype, **rest)

    return ops.using(pack_linear=pack_linear)
