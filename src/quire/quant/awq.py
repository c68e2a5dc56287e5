"""AWQ (Lin and others 2023), as AutoAWQ's version "gemm" stores it.

qweight  int32 [K, N / 8]     codes of 4 bits, packed along N in the order 0 2 4 6 1 3 5 7
qzeros   int32 [G, N / 8]     zero points, packed alike
scales   float [G, N]

W[n, k] = scales[g, n] · (code − zero)          g = k // group
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.core.dtypes import HostArray
from quire.core.quantization import Form
from quire.core.quantized import QuantizedWeight
from quire.quant.fields import HOW_IT_WAS_MADE, Fields, Uniform
from quire.quant.scheme import FLOATS, Stored
from quire.system.records import dataclass

_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Row within a group of eight of the i-th 4 bits of a word."""


@dataclass(frozen=True, slots=True)
class Awq:
    """`group` columns share a scale; 0 for all."""

    group: int

    def form(self, columns: int) -> Form:
        return Form("uint8", 4, self.group or columns, "zero")

    def stored(self, rows: int, columns: int) -> dict[str, Stored]:
        if rows % 8:
            raise ValueError(f"{rows} rows do not fill words of eight")
        groups = -(-columns // (self.group or columns))
        return {
            "qweight": Stored(("I32",), ((columns, rows // 8),)),
            "qzeros": Stored(("I32",), ((groups, rows // 8),)),
            "scales": Stored(FLOATS, ((groups, rows),)),
        }

    def read(self, tensors: Mapping[str, HostArray], rows: int, columns: int) -> QuantizedWeight:
        return QuantizedWeight(
            _unpack(tensors["qweight"]),
            4,
            np.ascontiguousarray(tensors["scales"].T),
            self.group or columns,
            _unpack(tensors["qzeros"]).astype(np.float32),
        )


def _unpack(words: HostArray) -> npt.NDArray[np.uint8]:
    """Return codes [N, K] from int32 [K, N / 8]."""
    columns, words_a_row = words.shape
    by_row = np.ascontiguousarray(words.T).view(np.uint32)
    codes = np.empty((words_a_row, 8, columns), np.uint8)
    for i, row in enumerate(_ORDER):
        codes[:, row] = (by_row >> (4 * i)) & 15
    return codes.reshape(-1, columns)


def awq_method(config: Mapping[str, Any]) -> Uniform:
    """Return the method of an AWQ checkpoint, or of AutoAWQ's own quant_config.json."""
    fields = Fields(config)
    fields.choice("w_bit" if "w_bit" in fields else "bits", {4: 4})
    fields.boolean("zero_point", default=True)  # if false, all are 8, but still stored
    fields.choice("version" if "version" in fields else "format", {"gemm": True}, "gemm")
    fields.choice("backend", {"autoawq": True, "auto": True}, "auto")
    name = "q_group_size" if "q_group_size" in fields else "group_size"
    scheme, dense = Awq(fields.group_size(name)), fields.strings("modules_to_not_convert")
    fields.skip(
        "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "sym", "desc_act",
        "checkpoint_format", "pack_dtype", "lm_head", "version", "format", "bits", "w_bit",
        "group_size", "q_group_size", *HOW_IT_WAS_MADE,
    )  # fmt: skip
    fields.done()
    return Uniform("awq", scheme, (*dense, "lm_head"))
