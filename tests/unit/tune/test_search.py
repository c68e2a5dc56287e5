"""The search over servers whose best configuration is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import QuireError
from quire.resolve.arguments import EngineArgs
from quire.tune.objective import best_rate
from quire.tune.search import Result, Search, Trial, grid
from quire.tune.space import Configuration, configurations, key, start_of
from tests.examples import examples
from tests.unit.tune.modelled import Modelled, Oracle

SPACE: dict[str, list[Any]] = {
    "max_num_seqs": [64, 8, 16, 32, 128],
    "max_num_batched_tokens": [None, 256, 512, 1024, 2048],
    "block_size": [16, 8, 32],
    "num_threads": [None, 1],
}
START = start_of(EngineArgs(), SPACE)
LIMITS = {name: SPACE[name] for name in ("max_num_seqs", "max_num_batched_tokens")}


def peak(configuration: Configuration, seqs: float = 32, tokens: float = 512) -> float:
    """Requests/s, highest at some batch and budget, as is usual."""
    budget = configuration.get("max_num_batched_tokens") or 2048
    far = abs(math.log2(configuration["max_num_seqs"] / seqs))
    far += 0.5 * abs(math.log2(budget / tokens))
    threads = 0.6 if configuration.get("num_threads") == 1 else 1.0
    block = 1.1 if configuration.get("block_size") == 32 else 1.0
    return 10.0 * threads * block * 0.85**far


def modelled(**wrong: float) -> Modelled:
    return Modelled(lambda c: 0.6 * peak(c, **wrong), lambda c: peak(c, **wrong))


def search(bench: Modelled, oracle: Modelled | None = None, **options: Any) -> Result:
    reported: list[Trial] = []
    options = {"attainment": 0.95, "max_runs": 100, "report": reported.append} | options
    space = options.pop("space", SPACE)
    start = {name: START.get(name, space[name][0]) for name in space}
    result = Search(space, start, bench, Oracle(oracle or bench), **options).run()
    assert reported == result.trials
    return result


def test_a_right_simulator_needs_few_runs() -> None:
    bench = modelled()
    result = search(bench)
    assert result.best.configuration == {
        "max_num_seqs": 32,
        "max_num_batched_tokens": 512,
        "block_size": 32,
        "num_threads": None,
    }
    assert result.start.stage == "start"
    assert bench.starts <= 10
    everything = {key(c) for c in configurations(SPACE)}
    measured = {key(t.configuration) for t in result.trials}
    pruned = {key(p.configuration) for p in result.pruned}
    assert not measured & pruned
    assert measured | pruned <= everything
    assert all(p.why for p in result.pruned)


def test_a_bad_start_is_left_before_the_limits_are_searched() -> None:
    bench = modelled()
    start = {**START, "num_threads": 1}
    result = Search(SPACE, start, bench, Oracle(bench), attainment=0.95, max_runs=4).run()
    assert result.trials[1].configuration["num_threads"] is None
    assert result.best.goodput > 1.5 * result.start.goodput


@settings(max_examples=examples(24))
@given(st.sampled_from([8, 16, 32, 64, 128]), st.sampled_from([256, 512, 1024, 2048]))
def test_near_the_grids_best_in_a_third_of_its_runs(seqs: int, tokens: int) -> None:
    """With a simulator that is off by a factor of 1.4 in both fields."""
    bench, exhaustive = modelled(seqs=seqs, tokens=tokens), modelled(seqs=seqs, tokens=tokens)
    found = search(bench, modelled(seqs=seqs * 1.4, tokens=tokens * 1.4), space=LIMITS)
    start = {name: START[name] for name in LIMITS}
    whole = grid(LIMITS, start, exhaustive, attainment=0.95, find=best_rate)
    assert found.best.goodput >= 0.94 * whole.best.goodput  # both rates are found to 6 %
    assert bench.starts <= exhaustive.starts / 3 + 1
    assert len(bench.loads) <= len(exhaustive.loads) / 3


CONFIGURATIONS = [key(c) for c in configurations(SPACE)]


@settings(max_examples=examples(36))
@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_never_returns_what_breaks_the_promise(random: Any, max_runs: int) -> None:
    """Whatever the machine does and the simulator says: the best keeps to the objective, and is
    no worse than another that was measured to, but for the noise."""
    limits = {name: random.choice([0.0, random.uniform(0, 20)]) for name in CONFIGURATIONS}
    broken = {name: random.random() < 0.2 for name in CONFIGURATIONS} | {key(START): False}
    said = {name: random.choice([0.0, 5.0, 9.0]) for name in CONFIGURATIONS}
    bench = Modelled(lambda c: limits[key(c)], lambda c: 10.0, lambda c: broken[key(c)])
    wrong = Modelled(lambda c: said[key(c)], lambda c: 10.0)
    result = search(bench, wrong, max_runs=max_runs)
    assert len(result.trials) <= max_runs
    kept = [run for t in result.trials for run in t.runs if run.attainment >= 0.95]
    if result.best is None:
        assert not kept
        return
    assert result.best.best.attainment >= 0.95
    assert result.best.best in result.best.runs
    assert result.best.goodput * 1.03 >= max(t.goodput for t in result.trials)


def test_a_start_that_fails_is_an_error() -> None:
    bench = Modelled(lambda c: 1.0, lambda c: 2.0, lambda c: True)
    with pytest.raises(QuireError, match="did not start"):
        search(bench)


def test_other_failures_are_reported() -> None:
    bench = modelled()
    bench.broken = lambda c: c["block_size"] == 32
    result = search(bench)
    failed = [t for t in result.trials if t.why.startswith("it failed")]
    assert failed
    assert all(t.best is None and "did not start" in t.why for t in failed)
    assert result.best.configuration["block_size"] != 32


def test_what_cannot_run_is_not_started() -> None:
    result = search(modelled(), why_not=lambda c: "no" if c["max_num_seqs"] == 32 else None)
    assert all(t.configuration["max_num_seqs"] != 32 for t in result.trials)
    assert {p.why for p in result.pruned if p.configuration["max_num_seqs"] == 32} == {"no"}


def test_what_looks_the_same_is_measured_once() -> None:
    flat = Modelled(lambda c: 5.0, lambda c: 10.0)
    result = search(flat)
    assert [t.stage for t in result.trials] == ["start", "block_size", "block_size"]
    assert {p.why for p in result.pruned} == {
        "the simulator predicts the same as for a measured one"
    }


@pytest.mark.parametrize("max_runs", [3, 4, 100])
def test_changes_without_a_gain_are_undone(max_runs: int) -> None:
    """More memory is taken for the search, and the simulator believes in one thread."""
    space = {**LIMITS, "num_threads": [None, 1], "gpu_memory_utilization": [0.5, 0.9]}
    bench = Modelled(lambda c: 10.0 if c["max_num_seqs"] == 32 else 8.0, lambda c: 20.0)
    wrong = Modelled(
        lambda c: bench.limit(c) * (2.0 if c["num_threads"] == 1 else 1.0), lambda c: 100.0
    )
    result = search(bench, wrong, space=space, max_runs=max_runs)
    assert len(result.trials) <= max_runs
    kept = {name for name, value in result.best.configuration.items() if value != space[name][0]}
    believed = {"num_threads"} if max_runs == 3 else set()  # nothing measured speaks against it
    assert kept == {"max_num_seqs"} | believed


def test_grid_measures_everything() -> None:
    start = {name: START[name] for name in LIMITS}
    result = grid(
        LIMITS,
        start,
        modelled(),
        attainment=0.95,
        why_not=lambda c: "no" if c["max_num_seqs"] == 8 else None,
    )
    assert len(result.trials) == 20
    assert [p.why for p in result.pruned] == ["no"] * 5
    assert result.best.configuration == {"max_num_seqs": 32, "max_num_batched_tokens": 512}
    assert result.best.best.rate == 6.0
