"""The values that quantized weights can take, and the scale that fits a group of them best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from quire.ops.quantized import QuantizedWeight

_FLOAT8 = torch.float8_e4m3fn
_SHRINK = tuple(1.0 - 0.04 * step for step in range(12))
"""Of a group's range, what is tried: the largest weights may be cut to serve the others."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Scale and, for integers that are not signed, zero point of each group: float32 [N, G]."""

    scale: Tensor
    zero: Tensor | None


@dataclass(frozen=True, slots=True)
class Grid:
    """What one weight of a group may become: (code − zero) · scale.

    Codes are held as float32 here, until `pack` gives them their type.

    Attributes:
        kind: "int" of `bits` bits, or "float8", which is E4M3.
        symmetric: zero stands in the middle; else each group has its zero point.
        scale_dtype: what the checkpoint stores scales as. They are rounded to it before any code
            is chosen.
    """

    kind: Literal["int", "float8"]
    bits: int
    symmetric: bool = True
    scale_dtype: torch.dtype = torch.bfloat16

    def fit(self, groups: Tensor, importance: Tensor | None = None) -> Scales:
        """Scales for float32 groups [N, G, g].

        They span the largest weight. With `importance`, float32 [G, g] (how much the square of a
        column's error counts), of several narrower ranges the one that costs a group least.
        """
        best = self._span(groups, 1.0)
        if importance is None or self.kind == "float8":
            return best
        least = self._cost(groups, best, importance)
        for share in _SHRINK[1:]:
            tried = self._span(groups, share)
            cost = self._cost(groups, tried, importance)
            better = cost < least
            least = torch.where(better, cost, least)
            best = Scales(
                torch.where(better, tried.scale, best.scale),
                None
                if best.zero is None or tried.zero is None
                else torch.where(better, tried.zero, best.zero),
            )
        return best

    def encode(self, values: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
        """The codes of `values`, nearest first; all of them broadcast."""
        codes = values / scale
        if self.kind == "float8":
            limit = torch.finfo(_FLOAT8).max
            return codes.clamp(-limit, limit).to(_FLOAT8).float()
        codes = codes.round() if zero is None else (codes + zero).round()
        return codes.clamp(*self._range)

    @staticmethod
    def decode(codes: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
        """What the codes stand for; with the roundings of `QuantizedWeight.dequantize`."""
        return (codes if zero is None else codes - zero) * scale

    def pack(self, codes: Tensor, scales: Scales, group: int) -> QuantizedWeight:
        """The canonical form of codes [N, K]."""
        if self.kind == "float8":
            stored = codes.to(_FLOAT8)
        else:
            stored = codes.to(torch.int8 if scales.zero is None else torch.uint8)
        return QuantizedWeight(stored, self.bits, scales.scale, group, scales.zero)

    @property
    def _range(self) -> tuple[int, int]:
        """Of codes: signed where a byte holds one, else from 0, as packed formats have them."""
        half = 1 << (self.bits - 1)
        return (-half, half - 1) if self._signed else (0, 2 * half - 1)

    @property
    def _signed(self) -> bool:
        return self.bits == 8 and self.symmetric

    def _span(self, groups: Tensor, share: float) -> Scales:
        if self.kind == "int" and not self.symmetric:
            low = groups.amin(-1).clamp(max=0.0) * share
            high = groups.amax(-1).clamp(min=0.0) * share
            top = (1 << self.bits) - 1
            scale = self._rounded((high - low) / top)
            return Scales(scale, (-low / scale).round().clamp(0, top))
        largest = groups.abs().amax(-1) * share
        if self.kind == "float8":
            return Scales(self._rounded(largest / torch.finfo(_FLOAT8).max), None)
        half = 1 << (self.bits - 1)
        # Codes reach further down than up. With 8 bits that is left alone; with 4 the step would
        # be a fourteenth wider for want of half a code at one end.
        scale = self._rounded(largest / (half - 1 if self._signed else half - 0.5))
        return Scales(scale, None if self._signed else torch.full_like(scale, float(half)))

    def _rounded(self, scale: Tensor) -> Tensor:
        """To the dtype of the checkpoint, and above 0, so that groups of zeros divide by it."""
        least = torch.finfo(self.scale_dtype).smallest_normal
        if self.scale_dtype == torch.float16:
            least = 2.0**-24
        return scale.to(self.scale_dtype).float().clamp(min=least)

    def _cost(self, groups: Tensor, scales: Scales, importance: Tensor) -> Tensor:
        scale = scales.scale.unsqueeze(-1)
        zero = None if scales.zero is None else scales.zero.unsqueeze(-1)
        error = self.decode(self.encode(groups, scale, zero), scale, zero) - groups
        cost: Tensor = (error.square_() * importance).sum(-1)
        return cost


def in_groups(weight: Tensor, group: int) -> Tensor:
    """[N, K] → [N, G, group]; `group` divides K."""
    return weight.view(*weight.shape[:-1], -1, group)


def round_to_nearest(weight: Tensor, grid: Grid, group: int) -> QuantizedWeight:
    """Each weight of float32 [N, K] to the nearest value, each group's scale by its largest."""
    return quantize_with(weight, grid, group, grid.fit(in_groups(weight, group)))


def quantize_with(weight: Tensor, grid: Grid, group: int, scales: Scales) -> QuantizedWeight:
    """Each weight of float32 [N, K] to the nearest value under the scales given."""
    zero = None if scales.zero is None else scales.zero.unsqueeze(-1)
    codes = grid.encode(in_groups(weight, group), scales.scale.unsqueeze(-1), zero)
    return grid.pack(codes.flatten(1), scales, group)
