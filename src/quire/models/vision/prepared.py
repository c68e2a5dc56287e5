"""A tower's parameters, as its layers compute with them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.images import HeadOrder, VisionConfig
from quire.models.parameters import ParameterSource
from quire.models.vision.layout import head_dim

_SCALES = {"attn.out": "attn_scale", "mlp.down": "mlp_scale"}
_ENDS = re.compile(r"(layers\.\d+)\.(attn\.out|mlp\.down)\.(?:weight|bias)")
_TURNED = re.compile(r"layers\.\d+\.attn\.(?:qkv|q_norm|k_norm)\.(?:weight|bias)")


class Prepared:
    """Gives parameters so that no op has to scale results, or to turn other pairs than i and i +
    half a head.

    Args:
        source: has the vectors that scale results as `attn_scale` and `mlp_scale` of each layer.
    """

    def __init__(self, source: ParameterSource, vision: VisionConfig) -> None:
        self._source = source
        self._vision = vision
        self.dtype = source.dtype

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def parts(self, name: str) -> Any:
        if self._factor(name) is not None:
            return [self.tensor(name)]
        found: Any = self._source.parts(name)
        if not self._turned(name):
            return found
        whole = self._reordered(np.concatenate(found))
        return np.split(whole, np.cumsum([len(part) for part in found])[:-1])

    def tensor(self, name: str) -> HostArray:
        factor, found = self._factor(name), self._source.tensor(name)
        if self._turned(name):
            return self._reordered(found)
        return found if factor is None else self._times(found, factor)

    def _turned(self, name: str) -> bool:
        return self._vision.head_order != "halves" and _TURNED.fullmatch(name) is not None

    def _reordered(self, rows: HostArray) -> HostArray:
        """Return rows of q, k and v, or of a head's norm, in the order of halves; v's stay."""
        vision, order = self._vision, head_order(self._vision.head_order, head_dim(self._vision))
        heads = vision.num_heads + (vision.kv_heads or vision.num_heads)
        end = min(heads * len(order), len(rows))
        firsts = np.arange(0, end, len(order))[:, None]
        places = np.concatenate([(firsts + order).reshape(-1), np.arange(end, len(rows))])
        return np.take(rows, places, axis=0)

    def _factor(self, name: str) -> HostArray | None:
        """Return what multiplies the rows of a parameter; None if nothing does."""
        found = _ENDS.fullmatch(name) if self._vision.layer_scale else None
        if found is None:
            return None
        return self._source.tensor(f"{found[1]}.{_SCALES[found[2]]}.weight")

    def _times(self, values: HostArray, factor: HostArray) -> HostArray:
        wide, rows = converted(values, FLOAT32), converted(factor, FLOAT32)
        shaped = rows.reshape(-1, *[1] * (wide.ndim - 1))
        return converted(np.multiply(wide, shaped), self.dtype)


def head_order(kind: HeadOrder, width: int) -> NDArray[np.int64]:
    """Return the checkpoint's elements of a head in the order of halves."""
    places = np.arange(width)
    if kind == "pairs":
        return places.reshape(-1, 2).T.reshape(-1)
    return places.reshape(2, 2, -1).swapaxes(0, 1).reshape(-1) if kind == "quarters" else places
