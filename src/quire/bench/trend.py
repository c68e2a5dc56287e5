"""Whether something grows: means and slopes with the interval that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value, and the interval that holds it with `CONFIDENCE`."""

    value: float
    low: float
    high: float


def mean(values: Sequence[float]) -> Estimate:
    """The mean of four values or more, each drawn by itself.

    Raises:
        ValueError: fewer than four values.
    """
    if len(values) < 4:
        raise ValueError(f"{len(values)} values do not say how far their mean may be off.")
    return _around(fmean(values), stdev(values) / len(values) ** 0.5, len(values) - 1)


def slope(x: Sequence[float], y: Sequence[float], blocks: int) -> Estimate:
    """How much y gains for one of x, by least squares through the means of equal parts of x.

    Neighbours of a series resemble each other; as if each said something new, the interval would
    be far too narrow. Parts longer than that memory do say something new.

    Args:
        x: ascending.
        blocks: how many parts, five or more.

    Raises:
        ValueError: fewer than five of the parts hold a value.
    """
    edges = np.linspace(x[0], x[-1], blocks + 1)[1:-1]
    parts = np.searchsorted(edges, x, side="right")
    held = np.unique(parts)
    if len(held) < 5:
        raise ValueError(f"{len(held)} parts hold values; a slope needs five.")
    at = np.array([np.mean(np.asarray(x)[parts == part]) for part in held])
    means = np.array([np.mean(np.asarray(y)[parts == part]) for part in held])
    gain, start = np.polyfit(at, means, 1)
    freedom = len(held) - 2
    rest = float(np.sum((means - start - gain * at) ** 2)) / freedom
    return _around(float(gain), (rest / float(np.sum((at - at.mean()) ** 2))) ** 0.5, freedom)


def _around(value: float, error: float, freedom: int) -> Estimate:
    wide = _student(freedom) * error
    return Estimate(value, value - wide, value + wide)


def _student(freedom: int) -> float:
    """Student's t that holds `CONFIDENCE` on both sides; within 3 % from three degrees on."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms: tuple[float, ...] = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum((term / freedom**power for power, term in enumerate(terms)), 0.0)
