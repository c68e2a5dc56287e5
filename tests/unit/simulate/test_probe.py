"""Rates fitted to seconds are those that the seconds came from."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.cost import RooflineCost
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.simulate import probe as measuring
from quire.simulate.probe import (
    CHUNK,
    LONG,
    SHORT,
    STREAMS,
    Entry,
    Reached,
    StepBench,
    fit,
    predict,
    probe,
    spread,
)
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


def test_the_spread_is_that_of_the_rounds() -> None:
    assert spread([2.0, 1.0, 3.0]) == 1.0
    assert spread([2.0]) == 0.0


def test_every_sequence_of_a_step_samples() -> None:
    """Else the output projection, which the cost model counts, would take no time."""
    config = resolve(EngineArgs(model="embedded"), detect()).config
    steps: list[list[Entry]] = [[(0, 0, 8)], [(0, 8, 1), (1, 16, 1)], [(0, 8, 8)], [(0, 8, 1)]]
    sampled: list[list[int]] = []
    with StepBench(config, 32, 2, 16) as bench:
        execute = bench._executor.execute

        def noted(batch: SchedulerOutput) -> ModelOutput:
            output = execute(batch)
            sampled.append(output.num_sampled().tolist())
            return output

        bench._executor.execute = noted  # type: ignore[method-assign]
        bench.fill(16)
        del sampled[:]
        for step in steps:
            assert bench.seconds(step) > 0.0
    assert sampled == [[1], [0, 0], [1, 1], [0], [1], [0], [1]]


def test_a_real_model_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model runs every step; the seconds come from known rates, not from a busy machine."""
    config = resolve(EngineArgs(model="embedded"), detect()).config
    there, run = Reached(50e9, 25e9, 4e11, 2e11), StepBench.seconds

    def timed(bench: StepBench, step: Sequence[Entry]) -> float:
        assert run(bench, step) > 0.0
        return predict(UNIT, there, step)

    monkeypatch.setattr(StepBench, "seconds", timed)
    monkeypatch.setattr(measuring, "LONG", 256)
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    found = probe(config, UNIT)
    assert found.spread == 0.0  # of one round
    for name in ("weights", "keys", "products", "attention"):
        assert getattr(found, name) == pytest.approx(getattr(there, name), rel=0.05)
