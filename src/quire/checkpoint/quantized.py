"""A quantized weight as a checkpoint's reader hands it over: numpy's form of
`ops.quantized.QuantizedWeight`, which needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

CodeType = Literal["uint8", "int8", "float8_e4m3fn", "float8_e5m2"]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedArrays:
    """A linear layer's weight [N, K]; `ops.quantized` documents the fields.

    Attributes:
        codes: [N, K], one byte each; 8-bit floats as their bits, uint8.
        code_type: what the bytes of `codes` are.
        bits: what a code needs.
        scale: float32 [N, ceil(K / group)].
        group: columns that share a scale.
        zero: float32, like `scale`, subtracted from the codes before they are scaled; or None.
        offset: float32, like `scale`, added behind; or None. Not together with `zero`.
        codebook: float32 [2^bits], what the codes stand for; or None.
        permutation: int64 [K], the column of the weight that column k of `codes` is; or None.
        input_scale: of activations that are quantized statically; or None.
    """

    codes: npt.NDArray[Any]
    code_type: CodeType
    bits: int
    scale: Floats
    group: int
    zero: Floats | None = None
    offset: Floats | None = None
    codebook: Floats | None = None
    permutation: npt.NDArray[np.int64] | None = None
    input_scale: float | None = None

    def dequantize(self) -> Floats:
        """Return float32 [N, K] from integer codes; every operation rounds to float32."""
        if self.code_type not in ("uint8", "int8"):
            raise ValueError(f"numpy has no {self.code_type}")
        n, k = self.codes.shape
        whole_groups = k % self.group == 0
        shape = (n, -1, self.group) if whole_groups else (n, k)

        def by_column(numbers: Floats) -> Floats:
            if whole_groups:
                return numbers[:, :, np.newaxis]
            return np.repeat(numbers, self.group, axis=1)[:, :k]

        codes = self.codes.reshape(shape)
        values = codes.astype(np.float32) if self.codebook is None else self.codebook[codes]
        with np.errstate(all="ignore"):  # a damaged scale may be anything
            if self.zero is not None:
                values -= by_column(self.zero)
            values *= by_column(self.scale)
            if self.offset is not None:
                values += by_column(self.offset)
        values = values.reshape(n, k)
        if self.permutation is None:
            return values
        dense = np.empty_like(values)
        dense[:, self.permutation] = values
        return dense
