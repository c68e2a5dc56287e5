"""GPTQ (Frantar and others 2022), as AutoGPTQ and GPTQModel store it.

qweight  int32 [K · bits / 32, N]     codes, packed along K, lowest bits first
qzeros   int32 [G, N · bits / 32]     zero points, packed along N; in the format "gptq" less 1
scales   float [G, N]
g_idx    int32 [K]                    the group of each column

W[n, k] = scales[g, n] · (code − zero)          g = g_idx[k]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from quire.core.dtypes import HostArray
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.core.quantization import Form
from quire.core.quantized import QuantizedWeight
from quire.quant.bits import permutation_of, unpack_rows
from quire.quant.fields import HOW_IT_WAS_MADE, Fields, skipped
from quire.quant.scheme import FLOATS, Stored
from quire.system.records import dataclass

_BITS = {2: 2, 3: 3, 4: 4, 8: 8}
_FORMATS = {"gptq": 1, "marlin": None, "gptq_v2": 0}


@dataclass(frozen=True, slots=True)
class Words:
    """Integers of 2 to 8 `bits`, packed into words.

    Attributes:
        group: columns that share a scale; 0 for all.
        symmetric: every zero point is in the middle.
        act_order: columns may be in any group.
    """

    bits: int
    group: int
    symmetric: bool = True
    act_order: bool = False

    def form(self, columns: int) -> Form:
        group = self.group or columns
        if self._signed:
            return Form("int8", 8, group, permuted=self.act_order, float_activations=True)
        second: Literal["zero", "middle"] = "middle" if self.symmetric else "zero"
        return Form("uint8", self.bits, group, second, permuted=self.act_order)

    @property
    def _signed(self) -> bool:
        """Return whether codes are signed bytes: 8 bits with a zero point of 128."""
        return self.bits == 8 and self.symmetric

    def weight(
        self, codes: HostArray, scale: HostArray, zero: HostArray, g_idx: HostArray | None
    ) -> QuantizedWeight:
        """Return the weight of unpacked codes [N, K], scales and zero points [N, G]."""
        columns = codes.shape[1]
        group = self.group or columns
        permutation = permutation_of(g_idx, group, columns)
        if permutation is not None:
            codes = codes[:, permutation]
        if self._signed:
            signed = (codes ^ np.uint8(128)).view(np.int8)
            return QuantizedWeight(signed, 8, scale, group, permutation=permutation)
        codes, zero = np.ascontiguousarray(codes), np.ascontiguousarray(zero.astype(np.float32))
        return QuantizedWeight(codes, self.bits, scale, group, zero, permutation=permutation)


@dataclass(frozen=True, slots=True)
class Gptq(Words):
    """Integers of GPTQ; `zero_less` was subtracted from zero points before packing."""

    zero_less: int = 1

    def form(self, columns: int) -> Form:
        form = Words.form(self, columns)
        return replace(form, permuted=self.act_order and self.group > 0)

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        if columns * self.bits % 32 or rows * self.bits % 32:
            raise ValueError(f"{rows} × {columns} codes of {self.bits} bits do not fill words")
        groups = -(-columns // (self.group or columns))
        return {
            "qweight": Stored(("I32",), ((columns * self.bits // 32, rows),)),
            "qzeros": Stored(("I32",), ((groups, rows * self.bits // 32),)),
            "scales": Stored(FLOATS, ((groups, rows),)),
            "g_idx": Stored(("I32", "I64"), ((columns,),), optional=True),
        }

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        codes = unpack_rows(tensors["qweight"].T, self.bits, columns)
        zeros = unpack_rows(tensors["qzeros"], self.bits, rows)
        zeros = (zeros + np.uint8(self.zero_less)) & np.uint8((1 << self.bits) - 1)
        if self._signed and not (zeros == 128).all():
            raise ValueError("qzeros are not all 128, although sym is true")
        scale = np.ascontiguousarray(tensors["scales"].T)
        return self.weight(codes, scale, zeros.T, tensors.get("g_idx"))


class GptqMethod:
    """`quantization_config` of a GPTQ checkpoint, with GPTQModel's exceptions by module."""

    name = "gptq"

    def __init__(self, config: Mapping[str, Any]) -> None:
        fields = Fields(config)
        bits = fields.choice("bits", _BITS)
        fields.choice("pack_dtype", {"int32": True}, "int32")
        name = "checkpoint_format" if "checkpoint_format" in fields else "format"
        less = fields.choice(name, _FORMATS, "gptq")
        if less is None or fields.boolean("is_marlin_format", default=False):
            raise UnsupportedModelError(
                "config.json: the weights are packed for one GPU kernel (marlin); Quire reads the "
                "formats gptq and gptq_v2.",
                param=f"quantization_config.{name}",
            )
        group = fields.group_size(default=-1)
        act_order = fields.boolean("desc_act", default=False)
        symmetric = fields.boolean("sym", default=True)
        self._scheme = Gptq(bits, group, symmetric, act_order, less)
        self._head = fields.boolean("lm_head", default=False)
        self._dense = fields.strings("modules_to_not_convert")
        self._dynamic = self._read_dynamic(fields.raw("dynamic", {}))
        fields.skip("checkpoint_format", "format", *HOW_IT_WAS_MADE)
        fields.done()

    def scheme(self, layer: str) -> Gptq | None:
        if skipped(layer, self._dense) or (layer.startswith("lm_head") and not self._head):
            return None
        for pattern, scheme in self._dynamic:
            if pattern.match(layer):
                return scheme
        return self._scheme

    def _read_dynamic(self, table: Any) -> list[tuple[re.Pattern[str], Gptq | None]]:
        """Return patterns of modules with their scheme: "-:" is dense; "+:" or no prefix changes
        fields."""
        found: list[tuple[re.Pattern[str], Gptq | None]] = []
        for key, fields in Fields(table, "quantization_config.dynamic").items():
            try:
                pattern = re.compile(key.removeprefix("+:").removeprefix("-:"))
            except re.error as error:
                raise CheckpointError(
                    f"config.json: quantization_config.dynamic has the pattern {key!r}: {error}.",
                    param="quantization_config.dynamic",
                ) from None
            base = self._scheme
            changed = replace(
                base,
                bits=fields.choice("bits", _BITS, base.bits),
                group=fields.group_size(default=base.group or -1),
                symmetric=fields.boolean("sym", default=base.symmetric),
                act_order=fields.boolean("desc_act", default=base.act_order),
            )
            fields.skip(*HOW_IT_WAS_MADE)
            fields.done()
            found.append((pattern, None if key.startswith("-:") else changed))
        return found
