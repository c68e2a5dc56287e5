"""Weights of 4-bit floats (E2M1), two per byte, the first in its low half.

MXFP4   weight_packed U8 [N, K / 2], weight_scale U8 [N, K / 32]: powers of two (E8M0);
        gpt-oss: all experts in …_blocks U8 [E, N, K / 32, 16] and …_scales U8 [E, N, K / 32]
NVFP4   weight_packed U8 [N, K / 2], weight_scale F8_E4M3 [N, K / 16], weight_global_scale F32

W[n, k] = e2m1[code] · weight_scale                                (MXFP4)
W[n, k] = e2m1[code] · (weight_scale / weight_global_scale)        (NVFP4; ModelOpt: · scale_2)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quire.core.dtypes import HostArray
from quire.core.quantization import Form
from quire.core.quantized import E2M1, QuantizedWeight
from quire.quant.bits import nibbles
from quire.quant.fields import Fields, Uniform
from quire.quant.fp8 import Fp8
from quire.quant.scheme import Scheme, Stored
from quire.system.records import dataclass

_ONE = ((), (1,))


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Groups of 32 share a power of two.

    Attributes:
        weight, scale: suffixes of the codes and of the powers.
    """

    weight: str = "weight_packed"
    scale: str = "weight_scale"

    def form(self, columns: int) -> Form:
        return Form("uint8", 4, 32, codebook="e2m1")

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        if columns % 32:
            raise ValueError(f"{columns} columns are not groups of 32")
        return {
            self.weight: Stored(("U8",), ((rows, columns // 2),), raw=True),
            self.scale: Stored(("U8", "F8_E8M0"), ((rows, columns // 32),)),
        }

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        codes, scale = nibbles(tensors[self.weight]), tensors[self.scale]
        return QuantizedWeight(codes, 4, scale, 32, codebook=np.array(E2M1, np.float32))


class Mxfp4Method:
    """`quantization_config` of gpt-oss, whose experts are MXFP4 and nothing else."""

    name = "mxfp4"

    def __init__(self, config: Mapping[str, Any]) -> None:
        fields = Fields(config)
        fields.skip("quant_method", "modules_to_not_convert", "dequantize")
        fields.done()

    def scheme(self, layer: str) -> Scheme | None:
        return Mxfp4("blocks", "scales") if ".experts." in layer else None


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """Groups of 16 share an 8-bit float, and the tensor has one more scale.

    Attributes:
        weight: suffix of the codes.
        whole: suffix of the tensor's scale.
        divides: whether the tensor's scale divides the others or multiplies them.
    """

    weight: str = "weight_packed"
    whole: str = "weight_global_scale"
    divides: bool = True

    def form(self, columns: int) -> Form:
        return Form("uint8", 4, 16, codebook="e2m1")

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        if columns % 16:
            raise ValueError(f"{columns} columns are not groups of 16")
        return {
            self.weight: Stored(("U8",), ((rows, columns // 2),), raw=True),
            "weight_scale": Stored(("F8_E4M3",), ((rows, columns // 16),)),
            self.whole: Stored(("F32",), _ONE),
            "input_scale": Stored(("F32",), _ONE, optional=True),
            "input_global_scale": Stored(("F32",), _ONE, optional=True),
        }

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        scale, whole = tensors["weight_scale"], tensors[self.whole].reshape(())
        factor = np.float32(1) / whole if self.divides else whole
        scale = (scale / whole if self.divides else scale * whole).astype(np.float32)
        codes, book = nibbles(tensors[self.weight]), np.array(E2M1, np.float32)
        factors = np.full(len(codes), factor, np.float32)
        return QuantizedWeight(codes, 4, scale, 16, codebook=book, factor=factors)


def modelopt_method(config: Mapping[str, Any]) -> Uniform:
    """Return the method of NVIDIA's ModelOpt: NVFP4, and FP8 with one scale per tensor."""
    fields = Fields(config)
    known: dict[str, Scheme] = {
        "fp8": Fp8(),
        "nvfp4": Nvfp4("weight", "weight_scale_2", divides=False),
    }
    scheme = fields.choice("quant_algo", known)
    dense = fields.strings("exclude_modules") + fields.strings("ignore")
    fields.skip(
        "quant_method", "kv_cache_quant_algo", "kv_cache_scheme", "group_size", "producer",
        "config_groups",
    )  # fmt: skip
    fields.done()
    return Uniform("modelopt", scheme, tuple(name.strip("*.") for name in dense))
