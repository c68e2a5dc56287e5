"""Prompts and arrivals: seeded, in range, of the distribution they claim."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from quire.bench.serving.workload import Ramp, arrival_times, lengths, text_prompts, token_prompts
from quire.core.errors import ConfigError


def test_token_prompts_are_in_the_vocabulary_and_seeded() -> None:
    prompts = token_prompts(8, 32, 50, [3, 0])
    assert [len(p) for p in prompts] == [32] * 8
    assert {type(token) for p in prompts for token in p} == {int}
    assert {token for p in prompts for token in p} <= set(range(50))
    assert prompts == token_prompts(8, 32, 50, [3, 0])
    assert prompts != token_prompts(8, 32, 50, [3, 1])
    assert len({tuple(p[:16]) for p in prompts}) == 8


def test_text_prompts_have_as_many_words() -> None:
    prompts = text_prompts(4, 12, [0])
    assert [len(p.split(" ")) for p in prompts] == [12] * 4
    assert prompts == text_prompts(4, 12, [0])
    assert prompts != text_prompts(4, 12, [1])


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_arrivals_have_the_rate_and_the_burstiness(burstiness: float, variation: float) -> None:
    times = arrival_times(20_000, 5.0, burstiness, [1])
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert np.all(gaps >= 0)
    assert np.mean(gaps) == pytest.approx(1 / 5.0, rel=0.05)
    # A gamma distribution's coefficient of variation is shape ** -0.5.
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(variation, rel=0.05)
    assert times == arrival_times(20_000, 5.0, burstiness, [1])


def test_an_infinite_rate_has_no_gaps() -> None:
    assert arrival_times(3, math.inf, 1.0, [0]) == [0.0, 0.0, 0.0]
    assert arrival_times(0, 1.0, 1.0, [0]) == []
    assert all(a <= b for a, b in pairwise(arrival_times(9, 0.5, 1.0, [0])))


@pytest.mark.parametrize(
    ("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0), (1.0, math.inf)]
)
def test_rates_that_cannot_be(rate: float, burstiness: float) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        arrival_times(1, rate, burstiness, [0])


def test_a_ramp_goes_from_its_start_to_its_end() -> None:
    linear = Ramp("linear", 1.0, 9.0)
    assert linear.rates(5).tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]
    assert Ramp("exponential", 1.0, 16.0).rates(5).tolist() == pytest.approx([1, 2, 4, 8, 16])
    gaps = np.diff(arrival_times(20_000, math.inf, 1.0, [1], linear))
    assert np.mean(gaps[:2000]) == pytest.approx(1 / 1.4, rel=0.1)
    assert np.mean(gaps[-2000:]) == pytest.approx(1 / 8.6, rel=0.1)
    with pytest.raises(ConfigError, match="both must be positive"):
        arrival_times(3, math.inf, 1.0, [1], Ramp("linear", 0.0, 1.0))


def test_lengths_around_a_mean() -> None:
    assert lengths(7, 0.0, 3, [0]) == [7, 7, 7]
    found = lengths(100, 0.2, 2000, [0])
    assert (min(found), max(found)) == (80, 120)
    assert lengths(1, 0.5, 2, [0]) == [1, 1]
