"""Counting by bucket, and what was counted of late."""

import pytest

from quire.metrics.histogram import Histogram, Percentiles, RecentLatencies, quantile


def test_a_bucket_s_bound_is_its_largest_value() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.total, histogram.count) == (104.0, 5)


def test_quantiles_lie_evenly_in_their_bucket() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert quantile(0.5, bounds, [0, 0, 0, 0]) is None
    assert quantile(0.5, bounds, [4, 0, 0, 0]) == 0.5
    assert quantile(0.5, bounds, [2, 4, 2, 0]) == pytest.approx(1.5)
    assert quantile(0.75, bounds, [0, 2, 2, 0]) == 3.0
    assert quantile(1.0, bounds, [0, 1, 0, 0]) == 2.0
    assert quantile(0.99, bounds, [1, 0, 0, 9]) == 4.0


def test_old_observations_are_forgotten() -> None:
    histogram = Histogram((1.0, 2.0))
    recent = RecentLatencies({"ttft": histogram})
    assert recent.percentiles(0.0) == {"ttft": Percentiles(None, None, None, 0)}
    for second in range(100):
        recent.begin_step(1000.0 + second)
        histogram.observe(0.5 if second < 50 else 1.5)
    found = recent.percentiles(1099.5)["ttft"]
    assert found.count == 60  # since the mark at 1040
    assert found.p99 == pytest.approx(2.0, abs=0.02)
    assert found.p50 > 1.0
    assert recent.percentiles(1160.0)["ttft"].count == 0


def test_a_pause_ends_with_what_comes_after_it() -> None:
    histogram = Histogram((1.0, 2.0))
    recent = RecentLatencies({"e2e": histogram})
    for moment in (10.0, 11.0, 12.0, 500.0):
        recent.begin_step(moment)
        histogram.observe(0.5)
    assert recent.percentiles(501.0)["e2e"].count == 1
