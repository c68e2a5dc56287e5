"""The simulator as a prophet: taught by a machine that is itself simulated."""

from __future__ import annotations

import math

import pytest

from quire.bench.serving.slo import Slo
from quire.resolve.arguments import EngineArgs
from quire.simulate.workload import Workload, generate
from quire.system.hardware import Hardware
from quire.tune.predict import Scale, Simulator
from quire.tune.space import Configuration

START = EngineArgs(model="opt-125m", load_format="dummy", dtype="bfloat16", max_num_seqs=16)
HERE = Hardware(cores=2, memory_bytes=2**34, available_bytes=2**34)
BAD: Configuration = {"max_num_seqs": 2}
GOOD: Configuration = {"max_num_seqs": 16}


def load(rate: float) -> Workload:
    return generate(12, rate=rate, input_len=48, output_len=12)


def simulator() -> Simulator:
    return Simulator(START, HERE, load, 12, Slo(ttft=2.0, tpot=0.2), 0.95)


def test_it_learns_what_the_machine_gives() -> None:
    """Bandwidth 2.4 times, products a quarter of the first guess, overheads threefold."""
    machine, prophet = simulator(), simulator()
    machine._scale = Scale(bandwidth=1.25, products=-2.0, overhead=1.5)
    real = machine.measure(BAD, math.inf)
    before = prophet.measure(BAD, math.inf)
    prophet.learn(BAD, real)
    after = prophet.measure(BAD, math.inf)
    assert abs(math.log(before.requests_s / real.requests_s)) > 0.2
    assert after.requests_s == pytest.approx(real.requests_s, rel=0.03)
    # What was learned of one configuration holds for another.
    unseen = machine.measure(GOOD, math.inf)
    assert prophet.measure(GOOD, math.inf).requests_s == pytest.approx(unseen.requests_s, rel=0.2)


def test_it_knows_the_better_configuration() -> None:
    prophet = simulator()
    bad, good = prophet.predict(BAD), prophet.predict(GOOD)
    assert good.goodput > 1.2 * bad.goodput
    assert good.attainment >= 0.95
    assert prophet.predict(GOOD) is good


def test_what_cannot_run_is_not_predicted() -> None:
    assert simulator().predict({"max_num_seqs": 64, "max_num_batched_tokens": 32}) is None
    assert simulator().predict({"kv_cache_memory_bytes": 1024}) is None


def test_bounds_are_counted() -> None:
    prophet = simulator()
    for slo, attainment in ((Slo(ttft=1e-6), 0.0), (Slo(e2e=1e6), 1.0), (Slo(itl=1e-6), 0.0)):
        prophet.slo = slo
        found = prophet.measure(GOOD, math.inf)
        assert found.attainment == attainment
        assert found.goodput == pytest.approx(attainment * found.requests_s)
