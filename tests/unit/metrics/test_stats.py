"""Counting, and the line in the log."""

import pytest

from quire.core.messages import CoreTimes, SchedulerStats, SpecDecodingStats, StageStats
from quire.core.outputs import RequestMetrics
from quire.metrics.prometheus import MetricsCollector
from quire.metrics.replica_stats import engine_stats
from quire.metrics.stats import EngineStats


def scheduler(**changes: int) -> SchedulerStats:
    fields = {
        "num_running": 3,
        "num_waiting": 1,
        "kv_blocks_used": 5,
        "kv_blocks_total": 20,
        "prefix_cache_queries": 8,
        "prefix_cache_hits": 2,
        "num_preemptions": 0,
        "num_steps": 1,
        "step_tokens": 7,
    }
    return SchedulerStats(**(fields | changes))


def test_shares() -> None:
    stats = EngineStats()
    assert (stats.kv_cache_usage, stats.prefix_hit_rate) == (0.0, 0.0)
    stats.on_step(scheduler(), 1.0)
    assert (stats.kv_cache_usage, stats.prefix_hit_rate) == (0.25, 0.25)
    stats.on_step(scheduler(kv_blocks_total=0, prefix_cache_queries=0, num_steps=2), 2.0)
    assert (stats.kv_cache_usage, stats.prefix_hit_rate) == (0.0, 0.0)
    assert stats.iteration_tokens.total == 14
    stats.on_step(scheduler(num_running=0, num_steps=2), 3.0)  # an abort, and no step
    assert stats.iteration_tokens.total == 14


def test_a_request_that_never_ran_has_no_prefill_time() -> None:
    stats = EngineStats()
    stats.on_request_finished(RequestMetrics(arrival_time=1.0, finished_time=3.0), 5, 0, 1, None)
    assert stats.e2e_request_latency.total == 2.0
    assert stats.request_queue_time.count == stats.request_prefill_time.count == 0


def test_how_long_the_queue_takes() -> None:
    stats = EngineStats()
    assert stats.seconds_to_finish(3, 10.0) is None
    for second in range(100):
        metrics = RequestMetrics(arrival_time=1.0, finished_time=second / 2)
        stats.on_request_finished(metrics, 5, 0, 1, None)
    assert stats.seconds_to_finish(3, 49.5) == pytest.approx(1.5)
    assert stats.seconds_to_finish(3, 81.5) == pytest.approx(3.0)  # none has finished since


def test_a_pause_does_not_make_the_queue_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = EngineStats()
    for begin in (10.0, 5000.0):  # more than an hour without a request lies between
        monkeypatch.setattr("quire.metrics.stats.time.monotonic", lambda begin=begin: begin)
        stats.on_arrival([1])
        stats.in_flight = lambda: 1
        metrics = RequestMetrics(arrival_time=begin, finished_time=begin + 2.0)
        stats.on_request_finished(metrics, 5, 0, 1, None)
        stats.in_flight = int
    assert stats.seconds_to_finish(4, 5002.0) == pytest.approx(8.0)


def test_one_line_in_ten_seconds_of_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="quire")
    stats = EngineStats()
    for second in range(100, 111):
        stats.prompt_tokens += 30
        stats.generation_tokens += 2
        times = CoreTimes(model=0.75 * second, sample=0.125 * second)
        stats.on_step(scheduler(), float(second), times)
    [record] = caplog.records
    assert record.getMessage() == (
        "prompt 30.0 tok/s, generation 2.0 tok/s, running 3, waiting 1, "
        "KV cache 25.0%, prefix hits 25.0%, model 75%, sample 12%"
    )


def test_a_line_about_drafts(caplog: pytest.LogCaptureFixture) -> None:
    """It counts from the line before; a line without drafts says nothing about them."""
    caplog.set_level("INFO", logger="quire")
    stats = EngineStats()
    for second in range(100, 131):
        step = scheduler()
        drafts = min(second - 100, 20)
        step.spec_decoding = SpecDecodingStats(
            10 * drafts, 20 * drafts, 15 * drafts, [9 * drafts, 6 * drafts]
        )
        stats.on_step(step, float(second))
    lines = [message for message in caplog.messages if message.startswith("Spec")]
    line = (
        "SpecDecoding metrics: Mean acceptance length: 2.50, "
        "Accepted throughput: 15.00 tokens/s, Drafted throughput: 20.00 tokens/s, "
        "Accepted: 150 tokens, Drafted: 200 tokens, Per-position acceptance rate: 0.900, 0.600, "
        "Avg Draft acceptance rate: 75.0%"
    )
    assert lines == [line, line]
    found = {
        (sample.name.removeprefix("vllm:spec_decode_"), sample.labels.get("position")): sample.value
        for family in MetricsCollector(stats, "m").collect()
        for sample in family.samples
        if "spec_decode" in sample.name
    }
    assert found == {
        ("num_drafts_total", None): 200,
        ("num_draft_tokens_total", None): 400,
        ("num_accepted_tokens_total", None): 300,
        ("num_accepted_tokens_per_pos_total", "0"): 180,
        ("num_accepted_tokens_per_pos_total", "1"): 120,
    }


def test_stages_are_counted() -> None:
    """Also over replicas, whose stages add up."""
    stats = engine_stats(range(2), 16)
    for replica in (0, 1):
        step = scheduler()
        step.stages = [StageStats(1.5, 0.25, 4000, 9), StageStats(2.0 + replica)]
        stats.of(replica).on_step(step, 1.0)
    assert stats.scheduler.stages == [StageStats(3.0, 0.5, 8000, 18), StageStats(5.0)]
    found = {
        (sample.name, sample.labels["stage"]): sample.value
        for family in MetricsCollector(stats, "m").collect()
        for sample in family.samples
        if sample.labels.get("engine") == "1" and "stage" in sample.labels
    }
    assert found == {
        ("quire:stage_seconds_total", "0"): 1.5, ("quire:stage_seconds_total", "1"): 3.0,
        ("quire:hop_seconds_total", "0"): 0.25, ("quire:hop_seconds_total", "1"): 0.0,
        ("quire:hop_bytes_total", "0"): 4000, ("quire:hop_bytes_total", "1"): 0,
        ("quire:hops_total", "0"): 9, ("quire:hops_total", "1"): 0,
    }  # fmt: skip


def test_what_several_processes_do_is_counted_in_cores(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="quire")
    stats = EngineStats()
    for second in range(100, 111):
        stats.front.tokenize = 2.5 * second
        stats.on_step(scheduler(), float(second), CoreTimes(model=0.75 * second))
    [record] = caplog.records
    assert record.getMessage().endswith("model 75%, tokenize 2.5 cores")


def test_a_pause_is_not_averaged_in(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="quire")
    stats = EngineStats()
    stats.on_step(None, 100.0)
    stats.on_step(None, 500.0)
    stats.on_step(None, 505.0)
    assert caplog.records == []


def test_a_replica_s_pause_is_not_averaged_in(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="quire")
    stats = engine_stats(range(2), 16)
    for second in (100, *range(500, 512)):
        paused = 400.0 if second >= 500 else 0.0
        busy = second - 100 - paused
        for replica in (0, 1):
            now = second + 0.25 * replica
            stats.of(replica).on_step(None, now, CoreTimes(model=0.75 * busy, idle=paused))
    [record] = caplog.records
    assert record.getMessage().endswith("model 75%, http 0%"), record.getMessage()


def test_another_core_begins_another_line(caplog: pytest.LogCaptureFixture) -> None:
    """Its times begin at zero: their difference from the last core's would be negative."""
    caplog.set_level("INFO", logger="quire")
    stats = EngineStats()
    for second in range(100, 109):
        stats.on_step(scheduler(), float(second), CoreTimes(model=0.75 * second))
    stats.forget_core()
    for second in range(109, 120):
        stats.on_step(scheduler(), float(second), CoreTimes(model=0.5 * (second - 109)))
    [record] = caplog.records
    assert "model 50%" in record.getMessage()


def test_a_lost_replica_s_counters_leave_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Its successor counts from zero, so nothing is compared with the sums before."""
    caplog.set_level("INFO", logger="quire")
    stats = engine_stats(range(2), 16)

    def step(replica: int, second: int, drafts: int, model: float) -> None:
        now = scheduler()
        now.spec_decoding = SpecDecodingStats(drafts, 2 * drafts, drafts, [drafts])
        stats.of(replica).on_step(now, float(second), CoreTimes(model=model))

    for second in range(100, 106):
        step(0, second, second, 0.5 * second)
        step(1, second, second, 0.5 * second)
    stats.of(1).forget_core()
    for second in range(106, 112):
        step(0, second, second, 0.5 * second)
    for second in range(112, 130):
        step(1, second, second - 111, 0.0)
        step(0, second, second, 0.5 * second)
    lines = [record.getMessage() for record in caplog.records]
    progress, speculation = lines
    assert "model 25%," in progress
    assert speculation == (
        "SpecDecoding metrics: Mean acceptance length: 2.00, Accepted throughput: 2.00 tokens/s, "
        "Drafted throughput: 4.00 tokens/s, Accepted: 20 tokens, Drafted: 40 tokens, "
        "Per-position acceptance rate: 1.000, Avg Draft acceptance rate: 50.0%"
    )
