"""A tower's parameters, with the vectors that scale its sub-layers taken into their products."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.models.parameters import ParameterSource

_SCALES = {"attn.out": "attn_scale", "mlp.down": "mlp_scale"}
_ENDS = re.compile(r"(layers\.\d+)\.(attn\.out|mlp\.down)\.(?:weight|bias)")


class Scaled:
    """Gives each product that ends a sub-layer with its rows multiplied: no op has to scale.

    Args:
        source: has the vectors as `attn_scale` and `mlp_scale` of each layer.
    """

    def __init__(self, source: ParameterSource) -> None:
        self._source = source
        self.dtype = source.dtype

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def parts(self, name: str) -> Any:
        factor = self._factor(name)
        if factor is None:
            return self._source.parts(name)
        return [self._times(self._source.tensor(name), factor)]

    def tensor(self, name: str) -> HostArray:
        factor, found = self._factor(name), self._source.tensor(name)
        return found if factor is None else self._times(found, factor)

    def _factor(self, name: str) -> HostArray | None:
        """Return what multiplies the rows of a parameter; None if nothing does."""
        found = _ENDS.fullmatch(name)
        if found is None:
            return None
        return self._source.tensor(f"{found[1]}.{_SCALES[found[2]]}.weight")

    def _times(self, values: HostArray, factor: HostArray) -> HostArray:
        wide, rows = converted(values, FLOAT32), converted(factor, FLOAT32)
        shaped = rows.reshape(-1, *[1] * (wide.ndim - 1))
        return converted(np.multiply(wide, shaped), self.dtype)
