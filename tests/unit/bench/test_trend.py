"""Estimates of means and slopes hold what is true as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.trend import _student, mean, slope

RUNS = 200


@pytest.mark.parametrize(
    ("freedom", "value"), [(3, 3.182), (5, 2.571), (8, 2.306), (13, 2.160), (100, 1.984)]
)
def test_students_t(freedom: int, value: float) -> None:
    assert _student(freedom) == pytest.approx(value, rel=0.03)


def test_intervals_of_noise_hold_zero_and_those_of_growth_do_not() -> None:
    """Noise whose neighbours resemble each other, as memory's do: 600 samples, ten blocks."""
    rng = np.random.default_rng(0)
    seconds = np.arange(600.0)
    level = grown = 0
    for _ in range(RUNS):
        noise = np.zeros(len(seconds))
        for i, step in enumerate(rng.normal(size=len(seconds) - 1)):
            noise[i + 1] = 0.8 * noise[i] + step
        found = slope(seconds.tolist(), noise.tolist(), 10)
        level += found.low <= 0 <= found.high
        grown += slope(seconds.tolist(), (noise + seconds / 60).tolist(), 10).low > 0
    assert level >= 0.92 * RUNS
    assert grown >= 0.99 * RUNS


def test_a_line_is_its_slope() -> None:
    found = slope([0, 1, 2, 3, 4, 5], [1, 3, 5, 7, 9, 11], 6)
    assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))


def test_means() -> None:
    found = mean([1.0, 2.0, 3.0, 4.0])
    assert found.value == 2.5
    assert found.high - 2.5 == pytest.approx(2.054, rel=0.03)


def test_too_little_to_say() -> None:
    with pytest.raises(ValueError, match="not 3"):
        mean([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="2 parts"):
        slope([0.0, 1.0], [0.0, 0.0], 10)
