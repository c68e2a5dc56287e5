"""No evidence, however absurd, makes a report print an impossible figure."""

from __future__ import annotations

import math

import msgspec
import pytest

from quire.core.messages import CoreTimes, SchedulerStats
from quire.core.outputs import RequestMetrics
from quire.core.sampling_params import SamplingParams
from quire.explain.analyse import explain
from quire.explain.bounds import gain_of
from quire.explain.causes.case import WORTH
from quire.explain.evidence import CORE
from quire.explain.limits import Limits
from quire.explain.probe import Probe
from quire.explain.report import Change
from quire.explain.text import render
from quire.metrics.stats import EngineStats
from tests.fuzz.evidence import UNBOUND, case, check
from tests.unit.explain.made import healthy, profile, with_window

WINDOWS = 60


def test_every_figure_of_random_windows_is_possible() -> None:
    """`python -m tests.fuzz.evidence` tries 100,000."""
    causes = {finding.cause for seed in range(WINDOWS) for finding in case(seed).causes}
    assert len(causes) > 20


def test_a_gain_is_of_the_time_that_a_change_can_save() -> None:
    assert gain_of(0.5) == pytest.approx(1.0)
    assert gain_of(5.13) == gain_of(math.inf) == gain_of(1.0) < math.inf
    assert gain_of(-0.1) == gain_of(math.nan) == 0.0


def middle(change: Change) -> float:
    """Return the middle of a range whose lower end is reported."""
    assert change.at_least
    return change.estimated_gain * (1.0 + change.uncertainty)


def test_a_gain_is_bounded_by_what_the_window_contains() -> None:
    """Few tokens show no small share, and each output token needs its products."""
    stopped = healthy(ops=UNBOUND, around={"stopped": 1.0}, generation_tokens=10)
    few = with_window(stopped, steps=1, step_sizes=[(8.0, 1)], computed_tokens=8)
    assert middle(explain(few).changes[0]) == pytest.approx(9.0)
    assert explain(stopped).changes[0].estimated_gain > 100.0
    busy = explain(with_window(stopped, generation_tokens=5000)).changes[0]
    # 5,000 tokens × 0.25 GFLOP at 3,200 GFLOP/s take 0.38 s of the ten.
    assert middle(busy) == pytest.approx(10 / 0.386 - 1.0, rel=0.03)


def test_steps_that_are_longer_than_the_window_widen_it() -> None:
    """Seen: "model 513 %" and a gain of 186,624,220,256 %."""
    parts = {"model": 25.6, "schedule": 0.05}
    evidence = healthy(args={"enforce_eager": True}, seconds=5.0, steps=1, step_sizes=[(8.0, 1)])
    report = explain(with_window(evidence, parts=parts))
    assert report.window_s == pytest.approx(25.65)
    assert report.split["model"] == pytest.approx(25.6 / 25.65)
    assert any("longer than the window of 5.0 s" in note for note in report.notes)
    check(report, render(report), 8000)


def test_what_async_scheduling_hides_behind_a_step_costs_nothing() -> None:
    parts = {"model": 9.8, "schedule": 1.0, "update": 1.0, "idle": 0.1}
    report = explain(with_window(healthy(args={"async_scheduling": True}), parts=parts))
    assert report.window_s == 10.0
    assert report.split["model"] == pytest.approx(0.98)
    assert sum(report.split.values()) == pytest.approx(1.0)
    assert report.split["schedule"] == pytest.approx(0.2 / 2.1 / 10)


def test_tokenizer_processes_are_busy_at_most_all_the_time() -> None:
    parts = {"idle": 7.0, "tokenize": 19.0}
    report = explain(healthy(parts=parts, args={"tokenizer_pool_size": 2}, ops=UNBOUND))
    assert report.split["tokenize"] == pytest.approx(0.95)
    assert report.verdict.cause == "tokenization"
    assert "takes 95% of the time, in 2 processes" in report.verdict.text
    check(report, render(report), 8000)


def test_a_limit_that_was_exceeded_is_stale() -> None:
    """Seen: "825 % of its 6 GB/s", of limits that were measured on a busy machine."""
    ops = profile(("linear", "layers.0.mlp.up", 9.0, 49.5, 20.0), model_seconds=9.1)
    slow = replace_bandwidth(6e9)
    for evidence in (healthy(ops=ops, limits=slow), healthy(limits=slow)):  # profiled, and not
        report = explain(evidence)
        assert report.limits.stale
        assert any("measured limit is stale" in note for note in report.notes)
        assert report.verdict.cause == "memory_bandwidth"
        assert "100% of its 6 GB/s (the measured limit is stale)" in report.verdict.text
        check(report, render(report), 8000)
    near = explain(healthy(ops=ops, limits=replace_bandwidth(48e9)))
    assert not near.limits.stale
    assert near.ops[0].of_limit == 1.0


def replace_bandwidth(bandwidth: float) -> Limits:
    limits = healthy().limits
    assert limits is not None
    return msgspec.structs.replace(limits, bandwidth={4: bandwidth})


@pytest.mark.parametrize("bandwidth", [{}, {4: 0.0}, {4: math.inf}, {4: math.nan}, {0: 1e9}])
def test_unusable_limits_are_not_used(bandwidth: dict[int, float]) -> None:
    limits = msgspec.structs.replace(replace_bandwidth(1.0), bandwidth=bandwidth)
    report = explain(healthy(ops=UNBOUND, limits=limits))
    assert report.limits.source == "seen"
    assert any("unusable" in note for note in report.notes)


@pytest.mark.parametrize("running", [0.4, 1.0])
@pytest.mark.parametrize("kv_share", [0.0, 0.4, 0.95])
def test_one_seat_and_seven_who_wait(running: float, kv_share: float) -> None:
    """However little a larger batch would gain."""
    report = explain(
        healthy(
            ops=UNBOUND, args={"max_num_seqs": 1}, running=running, waiting=7.0, demand=8,
            kv_share=kv_share, step_sizes=[(1.0, 1000)],
        )
    )  # fmt: skip
    (found,) = [finding for finding in report.causes if finding.cause == "queueing"]
    assert "7.0 requests wait" in found.text
    assert "--max-num-seqs" in str(report.changes) or found.share < WORTH


def test_a_short_queue_is_reported() -> None:
    report = explain(healthy(ops=UNBOUND, args={"max_num_seqs": 8}, waiting=0.1, demand=9))
    assert [finding.cause for finding in report.causes] == ["queueing"]
    report = explain(healthy(ops=UNBOUND, args={"max_num_seqs": 9}, waiting=0.1, demand=9))
    assert report.causes == []


def test_a_burst_that_queues_asks_for_no_smaller_batch() -> None:
    usual = healthy(ops=UNBOUND, args={"max_num_seqs": 64})
    report = explain(with_window(usual, running=9.0, waiting=1.0, demand=65))
    [queueing] = [finding for finding in report.causes if finding.cause == "queueing"]
    assert queueing.share == 0.0
    assert not [change for change in report.changes if change.flag.startswith("--max-num-seqs")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def told(stats: EngineStats, steps: int, running: int, seconds: CoreTimes) -> None:
    """The core reports after a step."""
    stats.on_step(SchedulerStats(running, 0, 0, 100, 0, 0, steps // 4, steps, 8), 0.0, seconds)


def test_a_new_core_counts_from_zero() -> None:
    stats, clock = EngineStats(), Clock()
    told(stats, 1000, 1, CoreTimes(model=100.0, idle=20.0))
    for steps in (0, 8, 2000):
        probe = Probe(stats, clock)
        clock.now += 10.0
        stats.forget_core()
        if steps:
            stats.restarts += 1
            stats.on_ready(100)
            told(stats, steps, 0, CoreTimes(model=4.0, idle=5.0))
        window = probe.end().window
        assert window.steps == steps
        assert window.preemptions == steps // 4
        assert window.parts["model"] == (4.0 if steps else 0.0)
        assert window.share(*CORE) == pytest.approx(1.0)
        told(stats, 1000, 1, CoreTimes(model=100.0, idle=20.0))


@pytest.mark.parametrize(("running", "part"), [(0, "idle"), (2, "model")])
def test_a_step_under_way_is_no_idle_time(running: int, part: str) -> None:
    """A step reports when it ends, which may be after the window."""
    stats, clock = EngineStats(), Clock()
    told(stats, 1000, running, CoreTimes(model=100.0))
    probe = Probe(stats, clock)
    clock.now += 5.0
    window = probe.end().window
    assert window.parts[part] == pytest.approx(5.0)
    assert window.steps == 0
    text = explain(with_window(healthy(limits=None), **msgspec.structs.asdict(window))).verdict.text
    assert ("Watch for longer" in text) is (running > 0)


def test_requests_in_flight_are_no_idle_time_before_their_first_step() -> None:
    """Seen: eight long prompts in one step of six seconds, "100 % idle" in a window of four."""
    stats, clock = EngineStats(), Clock()
    told(stats, 1000, 0, CoreTimes(model=100.0))
    stats.in_flight = lambda: 8
    probe = Probe(stats, clock)
    clock.now += 4.0
    assert probe.ended_steps == 0
    assert probe.end().window.share("model") == pytest.approx(1.0)
    told(stats, 1001, 8, CoreTimes(model=106.0))
    assert probe.ended_steps == 1
    stats.in_flight = lambda: 0
    assert probe.ended_steps is None


def test_loading_sequences_do_not_wait_and_cached_blocks_are_held() -> None:
    stats, clock = EngineStats(), Clock()
    told(stats, 1000, 1, CoreTimes(model=100.0))
    probe = Probe(stats, clock)
    held = SchedulerStats(1, 5, 30, 100, 0, 0, 0, 1001, 8, kv_blocks_cached=60, num_loading=2)
    stats.on_step(held, 0.0, CoreTimes(model=102.0))
    clock.now += 2.0
    window = probe.end().window
    assert (window.running, window.waiting, window.loading) == (1.0, 3.0, 2.0)
    assert (window.kv_peak, window.kv_held) == (0.3, pytest.approx(0.9))


def test_requests_count_while_they_are_in_flight() -> None:
    """Streams that began before the window are its load; requests that had ended are not."""
    stats, clock = EngineStats(), Clock()
    wants = SamplingParams(logprobs=5)
    ended, _ = (stats.on_arrival([1, 2, 3], params=wants) for _ in range(2))
    stats.on_request_finished(RequestMetrics(), 3, 1, 1, None, ended)
    probe = Probe(stats, clock)
    stats.on_arrival([1, 2, 3])
    clock.now += 1.0
    mix = probe.end().window.mix
    assert (mix.requests, mix.logprobs, mix.top_logprobs) == (2, 1, 5)
