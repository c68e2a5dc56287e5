"""The search for kernel values, on calls whose times are made up."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import pytest

from quire.tune.kernels.search import LEAST_GAIN, Subject, Values, compare, search
from quire.tune.kernels.subjects import ranges

Cost = Callable[[Values], float]


class Kernel:
    """Calls that take as long as `costs` say under the values in force, more or less."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *costs: Cost, noise: float) -> None:
        self.values: Values = {}
        self.applied: list[Values] = []
        self._now = 0.0
        self._random = random.Random(1)
        self._noise = noise
        self._costs = costs
        monkeypatch.setattr(time, "perf_counter", lambda: self._now)

    def subject(self, **fields: tuple[int, ...]) -> Subject:
        return Subject([self._call(cost) for cost in self._costs], fields, self._apply)

    def _apply(self, values: Values) -> None:
        self.values = values
        self.applied.append(values)

    def _call(self, cost: Cost) -> Callable[[int], None]:
        def call(_turn: int) -> None:
            drift = 1.0 + 0.3 * (self._now % 7.0 > 3.5)  # a neighbour comes and goes
            self._now += cost(self.values) * drift * (1 + self._noise * self._random.random())

        return call


def block(best: int, gain: float) -> Cost:
    """`gain` faster with field "block" at `best`, slower with any other value but its own."""

    def cost(values: Values) -> float:
        chosen = values.get("block", 0)
        return 0.02 * (1.0 if not chosen else 1 / (1 + gain) if chosen == best else 1.1)

    return cost


def test_a_real_gain_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, block(8, 0.2), noise=0.02)
    found = search(kernel.subject(block=(2, 4, 8, 16), ahead=(1, 2)), rounds=7, seconds=0.1)
    assert found.values == {"block": 8}
    assert found.gain == pytest.approx(0.2, abs=0.03)
    assert kernel.values == {}, "left as it was"


def test_fields_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(values: Values) -> float:
        ahead = 0.8 if values.get("ahead") == 2 and values.get("block") == 8 else 1.0
        return block(8, 0.1)(values) * ahead

    kernel = Kernel(monkeypatch, cost, noise=0.0)
    found = search(kernel.subject(block=(4, 8), ahead=(1, 2)), rounds=3, seconds=0.1)
    assert found.values == {"block": 8, "ahead": 2}
    assert found.gain == pytest.approx(1.1 / 0.8 - 1)


@pytest.mark.parametrize(
    ("gain", "noise"), [(0.0, 0.0), (0.0, 0.3), (LEAST_GAIN / 2, 0.0), (-0.1, 0.1), (0.03, 0.6)]
)
def test_noise_and_crumbs_are_not_gains(
    monkeypatch: pytest.MonkeyPatch, gain: float, noise: float
) -> None:
    kernel = Kernel(monkeypatch, block(8, gain), noise=noise)
    assert search(kernel.subject(block=(2, 4, 8, 16)), rounds=5, seconds=0.1) is None


def test_no_call_pays_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, block(8, 0.5), block(8, 0.5), block(8, -0.1), noise=0.0)
    assert search(kernel.subject(block=(8,)), rounds=3, seconds=0.1) is None


def test_luck_does_not_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was faster while it was searched, and is not when it is timed anew, is not taken."""
    seen = itertools.count()

    def cost(values: Values) -> float:
        return 0.02 / (1.2 if values and next(seen) < 60 else 1.0)

    kernel = Kernel(monkeypatch, cost, noise=0.0)
    assert search(kernel.subject(block=(8,)), rounds=5, seconds=0.1) is None
    assert next(seen) > 60


def test_gains_are_paired_by_round() -> None:
    gain = compare([[1.0, 2.0, 4.0]], [[0.5, 1.0, 2.0]])
    assert (gain.value, gain.spread, gain.worst) == pytest.approx((1.0, 0.0, 1.0))


def test_ranges_of_rows() -> None:
    assert ranges([32, 1, 8, 8]) == [(1, 1), (2, 8), (9, 32)]
    assert ranges([4]) == [(1, 4)]
