"""Rates are found: never one that breaks the promise, and nearly the highest that keeps it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.tune.objective import (
    GAIN,
    RESOLUTION,
    Found,
    Measurement,
    best_rate,
    classic_rate,
    pareto,
)
from tests.unit.tune.modelled import measurement

RATES = st.floats(0.05, 1e4)


def search(limit: float, capacity: float, **options: object) -> tuple[Found, list[float]]:
    asked: list[float] = []

    def measure(rate: float) -> Measurement:
        asked.append(rate)
        return measurement(rate, limit, capacity)

    return best_rate(measure, 0.95, **options), asked  # type: ignore[arg-type]


def test_a_rate_that_was_kept_counts_however_low_it_is() -> None:
    """The search gives up below a 32nd of the throughput, but not what it has found."""
    found, asked = search(0.27, 10.0, guess=lambda: 0.26)
    assert 0.26 in asked
    assert 0.26 <= found.best.rate <= 0.27


@given(RATES, st.floats(0.1, 2.0), st.one_of(st.none(), st.floats(0.1, 10)))
def test_finds_the_highest_rate(capacity: float, share: float, wrong: float | None) -> None:
    """Whatever the guess: fractions of a request a second included."""
    limit = share * capacity
    guess = None if wrong is None else wrong * limit
    found, asked = search(limit, capacity, guess=lambda: guess)
    assert asked[0] == math.inf
    assert len(asked) == len(set(asked)) <= 12
    assert found.best.attainment >= 0.95
    if limit >= capacity:
        assert asked == [math.inf]
    else:
        assert limit / (RESOLUTION * 1.01) <= found.best.rate <= limit


@given(RATES, st.floats(0.1, 0.99))
def test_a_good_guess_saves_loads(capacity: float, share: float) -> None:
    _, asked = search(share * capacity, capacity, guess=lambda: 0.99 * share * capacity)
    assert len(asked) <= 6


@given(st.integers(1, 5))
def test_one_bad_moment_does_not_end_the_search(which: int) -> None:
    asked = 0

    def measure(rate: float) -> Measurement:
        nonlocal asked
        asked += 1
        return measurement(rate, 0.0 if asked == which + 1 else 9.0, 10.0)

    found = best_rate(measure, 0.95)
    assert found.best.rate > 6.0


def test_no_rate_is_low_enough() -> None:
    found, asked = search(0.0, 8.0)
    assert found.best is None
    assert "too many" in found.why
    assert len(asked) < 10


@given(RATES, st.floats(0.1, 2.0), st.floats(0.1, 2.0))
def test_beating_another(capacity: float, share: float, other: float) -> None:
    """A search against the best so far is short, and ends with nothing unless it is better."""
    rival_limit = other * share * capacity
    rival = measurement(rival_limit, rival_limit, max(capacity, rival_limit))
    found, asked = search(share * capacity, capacity, beat=rival)
    if found.best is not None and math.isfinite(found.best.rate):
        assert found.best.rate >= GAIN * rival.rate * 0.99
    if other > 1.02 and share < 1:
        assert found.best is None
        assert len(asked) <= 2


@pytest.mark.parametrize(
    ("limit", "rate"), [(3.4, 3.0), (0.6, 0.5), (0.3, None), (0.2, None), (7.9, 7.0)]
)
def test_the_classic_rule(limit: float, rate: float | None) -> None:
    found = classic_rate(lambda r: measurement(r, limit, 8.5), 0.95)
    assert (found.best and found.best.rate) == rate


def test_the_classic_rule_all_at_once() -> None:
    found = classic_rate(lambda rate: measurement(rate, 9.0, 8.5), 0.95)
    assert math.isinf(found.best.rate)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_pareto(points: list[tuple[int, int]]) -> None:
    runs = [measurement(float(rate), 100.0, 100.0) for rate, _ in points]
    waits = {id(run): wait for run, (_, wait) in zip(runs, points, strict=True)}
    kept = pareto(runs, lambda run: waits[id(run)])
    for i, (rate, wait) in enumerate(points):
        beaten = any(r >= rate and w <= wait and (r, w) != (rate, wait) for r, w in points)
        assert not (beaten and i in kept)
        assert beaten or (rate, wait) in [points[k] for k in kept]
    assert [points[k][0] for k in kept] == sorted(points[k][0] for k in kept)
