"""Servers that exist only as formulas: what a search over them ought to find is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from quire.core.errors import QuireError
from quire.tune.objective import Measure, Measurement
from quire.tune.space import Configuration, key


def measurement(rate: float, limit: float, capacity: float) -> Measurement:
    """Of a server that keeps its promise up to `limit` requests/s, and serves `capacity`."""
    sent = min(rate, capacity)
    kept = rate <= limit or (math.isinf(rate) and limit >= capacity)
    attainment = 1.0 if kept else 0.5 * limit / sent
    waits = {"p50": 1.0, "p99": 10.0 * sent / capacity if kept else 1e4}
    return Measurement(
        rate=rate,
        goodput=attainment * sent,
        attainment=attainment,
        requests_s=sent,
        output_tok_s=16 * sent,
        ttft_ms=waits,
        tpot_ms=waits,
        itl_ms=waits,
        e2e_ms=waits,
        split={"model": 0.9, "idle": 0.1},
    )


@dataclass
class Modelled:
    """A bench of such servers.

    Attributes:
        limit, capacity: requests/s, of a configuration.
        broken: configurations whose server does not start.
        starts, loads: what was done.
    """

    limit: Callable[[Configuration], float]
    capacity: Callable[[Configuration], float]
    broken: Callable[[Configuration], bool] = lambda configuration: False
    starts: int = 0
    loads: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def __call__(self, configuration: Configuration) -> Iterator[Measure]:
        self.starts += 1
        if self.broken(configuration):
            raise QuireError("It did not start.")

        def measure(rate: float) -> Measurement:
            self.loads.append((key(configuration), rate))
            return self.at(configuration, rate)

        yield measure

    def at(self, configuration: Configuration, rate: float) -> Measurement:
        return measurement(rate, self.limit(configuration), self.capacity(configuration))


class Oracle:
    """Predicts by the formulas of a bench, which need not be the one that is measured."""

    def __init__(self, bench: Modelled) -> None:
        self._bench = bench

    def learn(self, configuration: Configuration, measurement: Measurement) -> None:
        pass

    def predict(self, configuration: Configuration) -> Measurement | None:
        limit, capacity = self._bench.limit(configuration), self._bench.capacity(configuration)
        if limit <= 0:
            return None
        return measurement(math.inf if limit >= capacity else limit, limit, capacity)
