"""Shares from two readings of an engine's counters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.bench.overhead import grid
from quire.bench.split import Reading, between, lag_ms, read_metrics, read_stats
from quire.core.errors import QuireError
from quire.core.messages import CoreTimes
from quire.metrics.replica_stats import engine_stats
from quire.metrics.stats import EngineStats
from quire.metrics.times import PARTS
from quire.server.monitoring.metrics import Metrics


def test_shares_are_of_the_time_between() -> None:
    first = Reading(10.0, {"model": 1.0, "sample": 1.0}, 100)
    last = Reading(14.0, {"model": 4.0, "sample": 1.5}, 180)
    split = between(first, last)
    assert split.row() == {
        "non_model_share": 0.25,
        "output_tok_s": 20.0,
        "split": {"model": 0.75, "sample": 0.125},
    }


def test_without_a_step_there_is_nothing_to_split() -> None:
    same = Reading(10.0, {"model": 1.0}, 100)
    with pytest.raises(QuireError, match="No step"):
        between(same, same)


def test_a_server_and_an_offline_engine_tell_the_same() -> None:
    stats = EngineStats()
    stats.generation_tokens = 7
    stats.on_step(None, 3.5, CoreTimes(receive=0.5, model=2.0, send=0.25, idle=0.75))
    reading = read_stats(stats)
    told = read_metrics(Metrics(stats, "m").render().decode())
    assert told is not None
    assert reading == replace(told, lags={})
    assert (reading.moment, reading.output_tokens) == (3.5, 7)
    assert reading.seconds.keys() == PARTS.keys()
    assert sum(reading.seconds.values()) == 3.5
    assert reading.seconds["detokenize"] == 0.25  # offline, the core's thread does it


def test_of_replicas_the_first_one_tells_the_times() -> None:
    stats = engine_stats(range(2), 16)
    first, second = stats.replicas
    before = []
    for now, told in ((3.0, first), (4.0, first), (8.0, second), (9.0, first)):
        told.generation_tokens += 5
        told.on_step(None, now, CoreTimes(model=now / 2, idle=now / 2))
        before.append(read_metrics(Metrics(stats, "m").render().decode()))
    one, *_, last = before
    assert one is not None
    split = between(one, last)
    assert (split.shares["model"], split.shares["idle"]) == (0.5, 0.5)
    assert split.output_tok_s == 15 / 6
    assert last.replicas == 2


def test_the_event_loop_s_lag() -> None:
    stats = EngineStats()
    metrics = Metrics(stats, "m")
    before = read_metrics(metrics.render().decode())
    for lag in [0.0005] * 50 + [0.0015] * 49 + [0.03]:
        stats.event_loop_lag.observe(lag)
    after = read_metrics(metrics.render().decode())
    assert before is not None
    assert after is not None
    assert lag_ms(before, after) == {"p99": 2.0}
    assert lag_ms(after, after) == {}


def test_another_server_tells_nothing() -> None:
    assert read_metrics("# TYPE vllm:x gauge\nvllm:x 3\n") is None


def test_the_table_has_two_lines_for_each_number_of_streams() -> None:
    way = {"non_model_share": 0.1, "output_tok_s": 9.0, "split": {"model": 0.9}}
    row = {"model": "m", "streams_8": {"http": way, "offline": way, "http_over_offline": 1.0}}
    http, offline = grid(row)
    assert (http["streams"], http["over"], http["http_over_offline"]) == (8, "http", 1.0)
    assert (offline["over"], offline["http_over_offline"]) == ("offline", None)
    assert offline["model"] == 0.9
