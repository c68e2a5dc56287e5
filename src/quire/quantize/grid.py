"""The values that quantized weights can take, and the scale that fits a group of them best."""

from __future__ import annotations

from typing import Literal

import numpy as np

from quire.core.dtypes import (
    BFLOAT16,
    FLOAT8_E4M3,
    FLOAT32,
    DType,
    Floats,
    converted,
    dtype_of,
    finfo,
)
from quire.core.quantized import QuantizedWeight
from quire.quant.bits import float8
from quire.quant.chunks import for_chunks
from quire.system.records import dataclass

_FLOAT8_MOST = float(finfo(FLOAT8_E4M3).max)
_SHRINK = tuple(1.0 - 0.04 * step for step in range(12))
"""Fractions of a group's range to try: clipping the largest weights may reduce the total error."""
_CHUNK = 1 << 17
"""Weights rounded at once, few enough to stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Scales:
    """The scale and, for unsigned integers, the zero point of each group: float32 [N, G]."""

    scale: Floats
    zero: Floats | None


@dataclass(frozen=True, slots=True)
class Grid:
    """The values that a weight of a group can take: (code − zero) · scale.

    Codes are float32 here; `quantize_with` converts them to their final type.

    Attributes:
        kind: "int" of `bits` bits, or "float8", which is E4M3.
        symmetric: the zero point is in the middle; otherwise each group has its own.
        scale_dtype: dtype of scales in the checkpoint. They are rounded to it before any code is
            chosen.
    """

    kind: Literal["int", "float8"]
    bits: int
    symmetric: bool = True
    scale_dtype: DType = BFLOAT16

    def fit(self, groups: Floats, importance: Floats | None = None) -> Scales:
        """Return scales for float32 groups [N, G, g].

        The range includes the largest weight. With `importance`, float32 [G, g], the weight of each
        column's squared error, narrower ranges are tried too; the one with the least error is used.
        """
        best = self._span(groups, 1.0)
        if importance is None or self.kind == "float8":
            return best
        least = self._cost(groups, best, importance)
        for share in _SHRINK[1:]:
            tried = self._span(groups, share)
            cost = self._cost(groups, tried, importance)
            better = cost < least
            np.copyto(least, cost, where=better)
            np.copyto(best.scale, tried.scale, where=better)
            if best.zero is not None and tried.zero is not None:
                np.copyto(best.zero, tried.zero, where=better)
        return best

    def encode(self, values: Floats, scale: Floats, zero: Floats | None) -> Floats:
        """Return the nearest codes of `values`; all arguments broadcast."""
        codes: Floats = values / scale
        if self.kind == "float8":
            np.clip(codes, -_FLOAT8_MOST, _FLOAT8_MOST, out=codes)
            return converted(float8(codes, FLOAT8_E4M3), FLOAT32)
        if zero is not None:
            codes += zero
        np.clip(np.rint(codes, out=codes), *self._range, out=codes)
        return codes

    @staticmethod
    def decode(codes: Floats, scale: Floats, zero: Floats | None) -> Floats:
        """Return the values of the codes, rounded as by `QuantizedWeight.dequantize`."""
        values: Floats = (codes if zero is None else codes - zero) * scale
        return values

    @property
    def code_dtype(self) -> DType:
        """The dtype of codes in the canonical form."""
        if self.kind == "float8":
            return FLOAT8_E4M3
        return dtype_of("int8" if self._signed else "uint8")

    @property
    def _range(self) -> tuple[int, int]:
        """The range of codes: signed if a byte holds one, else from 0 as in packed formats."""
        half = 1 << (self.bits - 1)
        return (-half, half - 1) if self._signed else (0, 2 * half - 1)

    @property
    def _signed(self) -> bool:
        return self.bits == 8 and self.symmetric

    def _span(self, groups: Floats, share: float) -> Scales:
        low, high = groups.min(-1), groups.max(-1)
        if self.kind == "int" and not self.symmetric:
            low, high = np.minimum(low, 0) * share, np.maximum(high, 0) * share
            top = (1 << self.bits) - 1
            scale = self._rounded((high - low) / top)
            return Scales(scale, np.clip(np.rint(-low / scale), 0, top))
        largest = np.maximum(-low, high) * share
        if self.kind == "float8":
            return Scales(self._rounded(largest / _FLOAT8_MOST), None)
        half = 1 << (self.bits - 1)
        # There is one more code below zero than above. With 8 bits this is ignored; with 4 bits,
        # ignoring it would make the step 1/14 wider.
        scale = self._rounded(largest / (half - 1 if self._signed else half - 0.5))
        return Scales(scale, None if self._signed else np.full_like(scale, half))

    def _rounded(self, scale: Floats) -> Floats:
        """Round to the checkpoint's dtype, but not to 0, because groups of zeros divide by it."""
        least = float(finfo(self.scale_dtype).smallest_normal)
        if self.scale_dtype == np.float16:
            least = 2.0**-24
        return np.maximum(converted(converted(scale, self.scale_dtype), FLOAT32), least)

    def _cost(self, groups: Floats, scales: Scales, importance: Floats) -> Floats:
        scale, zero = _by_weight(scales)
        error = self.decode(self.encode(groups, scale, zero), scale, zero)
        error -= groups
        cost: Floats = np.einsum("ngi,ngi,gi->ng", error, error, importance)
        return cost


def in_groups(weight: Floats, group: int) -> Floats:
    """Split [..., K] into groups: [..., G, group]. `group` divides K."""
    return weight.reshape(*weight.shape[:-1], -1, group)


def round_to_nearest(
    weight: Floats, grid: Grid, group: int, importance: Floats | None = None
) -> QuantizedWeight:
    """Round each weight of float32 [N, K] to the nearest value; scales as by `Grid.fit`."""
    return quantize_with(weight, grid, group, fit(weight, grid, group, importance))


def fit(weight: Floats, grid: Grid, group: int, importance: Floats | None = None) -> Scales:
    """Return `Grid.fit` of float32 [N, K], on all cores; `importance` is float32 [K]."""
    scale = np.empty((len(weight), weight.shape[1] // group), np.float32)
    zero = None if grid.code_dtype != np.uint8 else np.empty_like(scale)
    by_group = None if importance is None else in_groups(importance, group)

    def chunk(rows: slice) -> None:
        found = grid.fit(in_groups(weight[rows], group), by_group)
        scale[rows] = found.scale
        if zero is not None:
            zero[rows] = found.zero

    for_chunks(len(weight), max(1, _CHUNK // weight.shape[1]), chunk)
    return Scales(scale, zero)


def quantize_with(weight: Floats, grid: Grid, group: int, scales: Scales) -> QuantizedWeight:
    """Round each weight of float32 [N, K] to the nearest value under the scales given."""
    codes = np.empty(weight.shape, grid.code_dtype)
    scale, zero = _by_weight(scales)

    def chunk(rows: slice) -> None:
        found = grid.encode(
            in_groups(weight[rows], group), scale[rows], None if zero is None else zero[rows]
        )
        codes[rows] = found.reshape(-1, weight.shape[1]).astype(grid.code_dtype)

    for_chunks(len(weight), max(1, _CHUNK // weight.shape[1]), chunk)
    return QuantizedWeight(codes, grid.bits, scales.scale, group, scales.zero)


def _by_weight(scales: Scales) -> tuple[Floats, Floats | None]:
    """Scale and zero point, to broadcast with [N, G, g]."""
    zero = None if scales.zero is None else scales.zero[..., np.newaxis]
    return scales.scale[..., np.newaxis], zero
