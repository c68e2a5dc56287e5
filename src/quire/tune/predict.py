"""Predict measurements with the simulator, fitted to this machine.

The real scheduler runs under a virtual clock on the same load. A roofline gives the time of a step.
Three of its numbers are fitted to the first measurements: the bandwidth, the rate of products, and
the time outside the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from quire.bench.serving.slo import Slo
from quire.core.config import EngineConfig
from quire.core.cost import cautious_cpu
from quire.core.errors import QuireError
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.simulate.fleet import Outcome, Replica, simulate
from quire.simulate.workload import Workload
from quire.system.hardware import Hardware
from quire.system.records import dataclass
from quire.tune.objective import Measurement, best_rate
from quire.tune.space import Configuration, apply, key

LESSONS = 3
"""Number of configurations that the roofline is fitted to."""
STEPS = (1.0, 0.5, 0.25, 0.12)
"""Step sizes of the fit, in powers of two: from a factor of 2 down to 1.09."""
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors over the cautious first guess, as powers of two.

    Attributes:
        bandwidth, products: of the rates.
        overhead: of the seconds outside the model.
    """

    bandwidth: float = 0.0
    products: float = 0.0
    overhead: float = 0.0


NO_SCALE = Scale()


@dataclass
class Simulator:
    """Predicts measurements.

    Attributes:
        start: the engine that configurations are applied to.
        workload: returns the load at a rate, in requests per second.
        num_clients: maximum number of requests in flight.
    """

    start: EngineArgs
    hardware: Hardware
    workload: Callable[[float], Workload]
    num_clients: int
    slo: Slo
    attainment: float
    _scale: Scale = NO_SCALE
    _lessons: dict[str, list[tuple[Configuration, Measurement]]] = field(default_factory=dict)
    _known: dict[str, Measurement | None] = field(default_factory=dict)
    _configs: dict[str, EngineConfig] = field(default_factory=dict)

    def learn(self, configuration: Configuration, measurement: Measurement) -> None:
        """Fit to the first measurement of each of the first configurations."""
        name = key(configuration)
        if name not in self._lessons and len(self._lessons) == LESSONS:
            return
        lessons = self._lessons.setdefault(name, [])
        lessons.append((configuration, measurement))
        if len(lessons) == 1:  # all requests at once: the most informative load
            self._fit()

    def predict(self, configuration: Configuration) -> Measurement | None:
        """See `search.Predictor`."""
        name = key(configuration)
        if name not in self._known:
            self._known[name] = self._best(configuration)
        return self._known[name]

    def measure(self, configuration: Configuration, rate: float) -> Measurement:
        """Return the predicted measurement of a configuration.

        Raises:
            QuireError: the configuration cannot run.
        """
        return self._simulate(configuration, rate, self._scale)

    def _best(self, configuration: Configuration) -> Measurement | None:
        try:
            return best_rate(lambda rate: self.measure(configuration, rate), self.attainment).best
        except QuireError:
            return None

    def _fit(self) -> None:
        """Change one number at a time, in ever smaller steps, while the error decreases."""
        error = self._error(self._scale)
        for step in STEPS:
            moved = True
            while moved:
                moved = False
                for name in ("bandwidth", "products", "overhead"):
                    for sign in (step, -step):
                        tried = replace(self._scale, **{name: getattr(self._scale, name) + sign})
                        found = self._error(tried)
                        if found < 0.999 * error:
                            self._scale, error, moved = tried, found, True
                            break
        self._known.clear()

    def _error(self, scale: Scale) -> float:
        """Return the sum of squared logarithms of simulated over measured values."""
        total = 0.0
        for lessons in self._lessons.values():
            configuration, real = lessons[0]
            guess = self._simulate(configuration, real.rate, scale)
            pairs = [
                (guess.requests_s, real.requests_s),
                (guess.ttft_ms.get("p50"), real.ttft_ms.get("p50")),
                (guess.itl_ms.get("p50"), real.itl_ms.get("p50")),
            ]
            total += sum(math.log(a / b) ** 2 for a, b in pairs if a and b)
        return total

    def _simulate(self, configuration: Configuration, rate: float, scale: Scale) -> Measurement:
        workload = self.workload(rate)
        replica = self._replica(configuration, scale)
        clients = min(self.num_clients, len(workload))
        outcome = simulate(workload, [replica], num_clients=clients)
        return measurement_of(outcome, rate, self.slo)

    def _replica(self, configuration: Configuration, scale: Scale) -> Replica:
        config = self._config(configuration)
        guess = cautious_cpu(config.num_threads, config.memory_budget_bytes)
        profile = replace(
            guess,
            bytes_per_second=guess.bytes_per_second * 2**scale.bandwidth,
            flops_per_second={
                name: rate * 2**scale.products for name, rate in guess.flops_per_second.items()
            },
            overhead_seconds=guess.overhead_seconds * 2**scale.overhead,
            seq_overhead_seconds=guess.seq_overhead_seconds * 2**scale.overhead,
        )
        return Replica.on(config, profile)

    def _config(self, configuration: Configuration) -> EngineConfig:
        """Return what the engine makes of a configuration: the same whatever the scale."""
        name = key(configuration)
        if name not in self._configs:
            args = apply(self.start, configuration)
            self._configs[name] = resolve(args, self.hardware).config
        return self._configs[name]


def measurement_of(outcome: Outcome, rate: float, slo: Slo) -> Measurement:
    """Return what a client would have measured in a simulation.

    The simulation does not store the gaps of each request. So an ITL bound is compared with the
    99th percentile of all gaps.
    """
    done = np.isfinite(outcome.last)
    # A request waits from the moment at which it is due, even while every client is busy.
    begun = outcome.sent if math.isinf(rate) else outcome.workload.arrivals
    ttft, e2e = outcome.first - begun, outcome.last - begun
    following = np.maximum(outcome.tokens - 1, 1)
    tpot = np.where(outcome.tokens > 1, (outcome.last - outcome.first) / following, np.nan)
    itl = outcome.gaps.percentile(0.99)
    met = done & _within(ttft, slo.ttft) & _within(tpot, slo.tpot) & _within(e2e, slo.e2e)
    if slo.itl is not None and itl > slo.itl:
        met[:] = False
    elapsed = max(float(np.nanmax(outcome.last, initial=0.0)), 1e-9)
    gaps = {f"p{p}": outcome.gaps.percentile(p / 100) * 1e3 for p in PERCENTILES}
    return Measurement(
        rate=rate,
        goodput=float(met.sum()) / elapsed,
        attainment=float(met.mean()),
        requests_s=float(done.sum()) / elapsed,
        output_tok_s=float(outcome.tokens.sum()) / elapsed,
        ttft_ms=_spread(ttft[done]),
        tpot_ms=_spread(tpot[done & (outcome.tokens > 1)]),
        itl_ms=gaps,
        e2e_ms=_spread(e2e[done]),
    )


def _within(seconds: NDArray[np.float64], bound: float | None) -> NDArray[np.bool_]:
    """Return which times are within the bound; a missing time (NaN) is."""
    if bound is None:
        return np.ones(len(seconds), dtype=np.bool_)
    return ~(seconds > bound + 1e-9)


def _spread(seconds: NDArray[np.float64]) -> dict[str, float]:
    if not len(seconds):
        return {}
    return {f"p{p}": float(np.percentile(seconds, p)) * 1e3 for p in PERCENTILES}
