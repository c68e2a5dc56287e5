"""The counter-based random numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.sampling.rng import _mix, uniform

SEEDS = st.integers(-(2**63), 2**64 - 1)


@given(SEEDS, st.integers(0, 2**31))
def test_in_the_unit_interval_and_a_function_of_its_arguments(seed: int, position: int) -> None:
    u = uniform(seed, position)
    assert 0.0 <= u < 1.0
    assert u == uniform(seed, position)


def test_splitmix64_of_its_authors() -> None:
    """The output function's known answers for the generator's first states from seed 0."""
    state, answers = 0, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        answers.append(_mix(state))
    assert answers == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


class SplitMix64:
    """The generator as its authors wrote it: a counter and an output function."""

    def __init__(self, state: int) -> None:
        self.state = state % 2**64

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        return _mix(self.state)


@pytest.mark.parametrize("seed", [0, 1, -1, 7, 2**63, -(2**63), 2**64 - 1])
def test_a_seed_and_a_position_give_the_same_number_for_ever(seed: int) -> None:
    stream = SplitMix64(SplitMix64(seed).next())
    for position in range(50):
        assert uniform(seed, position) == (stream.next() >> 11) / 2**53


@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_uniform_along_positions_and_along_seeds(along: str) -> None:
    n, bins = 20_000, 64
    pairs = ((7, i) if along == "positions" else (i, 7) for i in range(n))
    u = np.array([uniform(seed, position) for seed, position in pairs])
    counts = np.bincount((u * bins).astype(int), minlength=bins)
    chi2 = ((counts - n / bins) ** 2 / (n / bins)).sum()
    assert 30 < chi2 < 110  # 63 degrees of freedom: 1 in 10,000 on either side
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03
    assert len(np.unique(u)) == n
