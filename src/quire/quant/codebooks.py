"""Codebooks: the values of 4-bit codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf_blocks import IQ4_VALUES
from quire.core.quantized import E2M1

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution (QLoRA, Dettmers and others 2023, appendix E)."""

FP4 = tuple(
    value / 12.0
    for value in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0,
                  -0.0, -0.0625, -8.0, -12.0, -4.0, -6.0, -2.0, -3.0)
)  # fmt: skip
"""The 4-bit float of bitsandbytes, scaled to 1."""

CODEBOOKS: dict[str, tuple[float, ...]] = {
    "e2m1": E2M1,
    "e2m1x2": tuple(2 * value for value in E2M1),
    "nf4": NF4,
    "fp4": FP4,
    "iq4_nl": IQ4_VALUES,
}


def buckets(x: npt.NDArray[Any], bounds: Iterable[float]) -> npt.NDArray[np.uint8]:
    """Return the number of `bounds` below each number, which is its index among ascending levels.

    With few bounds, comparing with each is much faster than `np.searchsorted`.
    """
    places = np.zeros(x.shape, np.uint8)
    for bound in bounds:
        places += x > bound
    return places
