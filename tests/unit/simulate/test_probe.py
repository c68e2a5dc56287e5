"""Rates fitted to seconds are those that the seconds came from."""

from __future__ import annotations

import pytest

from quire.core.cost import RooflineCost
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.simulate.probe import CHUNK, LONG, SHORT, STREAMS, Entry, Reached, fit, predict, probe
from quire.system.hardware import detect

UNIT = RooflineCost(1.2e9, 114_688.0, 0.9e9, 0.3e9, 2.3e5, 1.0, 1.0, 1.0)
STEPS: list[list[Entry]] = [
    [(0, SHORT, 1)],
    [(0, 0, CHUNK)],
    [(0, LONG - CHUNK, CHUNK)],
    [(index, LONG - 1, 1) for index in range(STREAMS)],
]


@pytest.mark.parametrize("rates", [(50e9, 25e9, 4e11, 2e11), (2e12, 1e12, 5e14, 1e14)])
def test_fitting_finds_the_rates(rates: tuple[float, ...]) -> None:
    there = Reached(*rates)
    found = fit(UNIT, STEPS, [predict(UNIT, there, step) for step in STEPS])
    for name in ("weights", "keys", "products", "attention"):
        assert getattr(found, name) == pytest.approx(getattr(there, name), rel=0.02)


def test_a_real_model_is_probed() -> None:
    config = resolve(EngineArgs(model="embedded"), detect()).config
    reached = probe(config, UNIT)
    assert all(
        1e6 < rate < 1e16
        for rate in (reached.weights, reached.keys, reached.products, reached.attention)
    )
