"""Arithmetic of RoPE that needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def yarn_magnitude(params: Mapping[str, Any]) -> float:
    """Return YaRN's factor of cosines and sines, which keeps attention as sharp as before.

    Args:
        params: `factor`; optionally `attention_factor`, which is the result, or both `mscale`
            and `mscale_all_dim`.
    """
    factor = params["factor"]

    def mscale(weight: float) -> float:
        return float(0.1 * weight * math.log(factor) + 1.0) if factor > 1 else 1.0

    if (explicit := params.get("attention_factor")) is not None:
        return float(explicit)
    if params.get("mscale") and params.get("mscale_all_dim"):
        return mscale(params["mscale"]) / mscale(params["mscale_all_dim"])
    return mscale(1.0)
