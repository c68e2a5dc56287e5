"""Means and slopes with confidence intervals, to tell growth from noise."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

import numpy as np

from quire.system.records import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value and its confidence interval (`CONFIDENCE`)."""

    value: float
    low: float
    high: float


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean of at least four independent values.

    Raises:
        ValueError: fewer than four values.
    """
    if len(values) < 4:
        raise ValueError(f"A mean with an interval needs four values, not {len(values)}.")
    return _around(fmean(values), stdev(values) / len(values) ** 0.5, len(values) - 1)


def slope(x: Sequence[float], y: Sequence[float], blocks: int) -> Estimate:
    """Return the slope of y over x, by least squares through the means of equal parts of x.

    Neighbouring values of a series are correlated. Treating them as independent would make the
    interval far too narrow. Means of parts longer than the correlation are independent.

    Args:
        x: ascending.
        blocks: number of parts, at least five.

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
    """Return the two-sided quantile of Student's t; within 3 % from three degrees of freedom on."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms: tuple[float, ...] = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum((term / freedom**power for power, term in enumerate(terms)), 0.0)
