"""Time that no rule was made for: other code, sleep, the garbage collector, slow kernels."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.explain.analyse import explain
from quire.explain.evidence import Evidence
from quire.explain.host import HostUse, Worker
from quire.explain.report import Report
from quire.explain.standing import Standing
from quire.explain.text import render
from quire.system.stacks import Place, Stacks
from tests.unit.explain.made import healthy
from tests.unit.explain.made_faults import FAULTS, UNBOUND, stacks


def seen(evidence: Evidence, *processes: Stacks) -> Report:
    return explain(msgspec.structs.replace(evidence, stacks=list(processes)))


def sleeping(where: str, share: float, **fields: Any) -> Evidence:
    standing = Standing(9, "process", share, where, computes=True)
    return healthy(around={"standing": [standing]}, **fields)


def test_sleep_of_other_code_is_named_with_its_line() -> None:
    report = seen(*FOREIGN)
    assert report.verdict.cause == "foreign_code"
    assert "slept in the engine core for 40% of the time: /x/sitecustomize.py:7 slow" in (
        report.verdict.text
    )
    assert report.changes[0].estimated_gain == pytest.approx(0.4 / 0.6, rel=0.05)


FOREIGN = (
    healthy(),
    stacks(),
    stacks(Place("MainThread", "/x/sitecustomize.py:7 slow", True, 4.0, 3.9)),
)


def test_other_code_in_the_event_loop_costs_what_the_core_waits_for_it() -> None:
    place = Place("MainThread", "/x/auth.py:3 check", True, 6.0, 0.0)
    [busy, idle] = (
        seen(healthy(parts={"idle": idle}), stacks(place), stacks()) for idle in (0.0, 5.0)
    )
    assert busy.changes[0].estimated_gain == 0.0
    assert idle.verdict.share == pytest.approx(0.5)
    assert "ran in the API process for 60%" in idle.verdict.text


def test_a_thread_that_computes_beside_the_core_has_no_figure() -> None:
    """What it costs depends on how often it has the interpreter's lock."""
    place = Place("telemetry", "/x/apm.py:30 loop", True, 9.0, 1.0)
    report = seen(healthy(), stacks(), stacks(place))
    assert report.verdict.cause == "foreign_code"
    assert "thread 'telemetry'" in report.verdict.text
    assert report.changes[0].estimated_gain == 0.0


def test_a_thread_that_sleeps_is_nobodys_trouble() -> None:
    place = Place("telemetry", "/x/apm.py:30 loop", True, 9.0, 8.9)
    assert not seen(healthy(), stacks(), stacks(place)).verdict.fault


def test_sleep_without_a_known_reason_is_named_with_its_place() -> None:
    own = Place("MainThread", "engine/process.py:run", False, 5.0, 4.8, "system/frames.py:send")
    report = seen(sleeping("pipe_write", 0.5), stacks(), stacks(own))
    assert report.verdict.cause == "blocked"
    for words in (
        "process 9",
        "the engine core",
        "50% of the time",
        "pipe_write",
        "frames.py:send",
    ):
        assert words in report.verdict.text


def test_sleep_that_other_code_explains_is_named_once() -> None:
    place = Place("MainThread", "/x/sitecustomize.py:7 slow", True, 4.5, 4.4)
    report = seen(sleeping("hrtimer_nanosleep", 0.45), stacks(), stacks(place))
    assert [f.cause for f in report.causes if f.fault] == ["foreign_code"]


@pytest.mark.parametrize("loading", [0.0, 8.0])
def test_waiting_for_blocks_of_the_disk_is_no_sleep(loading: float) -> None:
    evidence = sleeping("hrtimer_nanosleep", 0.5, loading=loading, running=0.1)
    named = [finding.cause for finding in explain(evidence).causes]
    assert ("blocked" in named) is not bool(loading)


def test_a_sleeping_tokenizer_counts_if_requests_are_before_the_core() -> None:
    standing = [Standing(11, "tokenizer_worker", 0.8, "hrtimer_nanosleep")]
    evidence = healthy(
        parts={"idle": 6.0}, around={"standing": standing}, in_flight=6.0, running=2.0
    )
    report = explain(evidence)
    assert report.verdict.cause == "blocked"
    assert "tokenizer_worker" in report.verdict.text
    beyond = msgspec.structs.replace(evidence.window, in_flight=2.0)
    assert not explain(msgspec.structs.replace(evidence, window=beyond)).verdict.fault


def test_an_event_loop_that_waits_for_a_pipe_is_not_stopped() -> None:
    place = Place(
        "MainThread", "frontend/async_engine.py:on_message", False, 4.0, 3.8,
        "logging/__init__.py:flush",
    )  # fmt: skip
    report = seen(healthy(around={"paused": 0.4}), stacks(place), stacks())
    assert report.verdict.cause == "blocked"
    assert "logging/__init__.py:flush" in report.verdict.text
    waiting = msgspec.structs.replace(place, called="selectors.py:select")
    report = seen(healthy(around={"paused": 0.4}), stacks(waiting), stacks())
    assert report.verdict.cause == "stopped"


def test_the_garbage_collector_is_named_with_its_process() -> None:
    report = seen(healthy(), stacks(), stacks(collecting=3.0))
    assert report.verdict.cause == "garbage_collection"
    assert "in the engine core for 30%" in report.verdict.text
    assert FAULTS["garbage_collection"][1] in report.changes[0].flag


@pytest.mark.parametrize(("own", "saved"), [(0.0, 0.5), (0.5, 0.33)])
def test_a_neighbour_costs_the_waits_that_the_engine_does_not_cause(
    own: float, saved: float
) -> None:
    """Seen: +33 % promised where +107 % came, of threads that waited half of the time."""
    host = HostUse(10.0, 4, 10.0 + 40.0 * 0.5, 20.0, 0.0, 20.0, [5.0] * 4)
    report = explain(healthy(host=host, ops=UNBOUND, parts={"http": 10.0 * own}))
    assert report.verdict.cause == "busy_neighbour"
    assert report.verdict.share == pytest.approx(saved, abs=0.01)


def test_the_time_of_the_cores_thread_is_all_accounted_for() -> None:
    worker = Worker(9, ran=4.6, waited=3.0)
    host = HostUse(10.0, 4, 20.0, 20.0, 0.0, 3.0, [3.0], workers=[worker])
    report = explain(healthy(host=host, parts={"idle": 2.0}))
    assert report.thread == pytest.approx(
        {"runs": 0.46, "waits for a CPU": 0.3, "has no work": 0.2, "sleeps": 0.04}
    )
    assert "its thread runs 46%, waits for a CPU 30%, has no work 20%, sleeps 4%" in render(report)
    assert explain(healthy()).thread == {}


def test_a_low_priority_costs_nothing_on_a_quiet_machine() -> None:
    """Its threads wait for its own front end."""
    for others, named in ((0.1, False), (1.0, True)):
        host = HostUse(10.0, 4, 20.0 + 10.0 * others, 20.0, 0.0, 4.0, [1.5] * 4)
        report = explain(healthy(host=host, around={"nice": 19}))
        assert ("low_priority" in [f.cause for f in report.causes]) is named


@pytest.mark.parametrize(
    ("idle", "loop", "ran", "lost"),
    [(0.0, 0.0, 2.0, 0.8), (5.0, 8.0, 5.0, 0.5), (5.0, 1.0, 5.0, 0.1)],
)
def test_a_limit_costs_the_time_in_which_the_core_does_not_run(
    idle: float, loop: float, ran: float, lost: float
) -> None:
    """Seen: +800 % promised where +120 % came, of a limit that only the API process had."""
    worker = Worker(9, ran, 10.0 - idle - ran)
    host = HostUse(10.0, 4, 30.0, 30.0, 0.0, 8.0, [8.0], loop_waited=loop, workers=[worker])
    around = {"quota": 5.0, "throttled": 30.0}
    report = explain(healthy(host=host, around=around, parts={"idle": idle}))
    assert report.verdict.cause == "cpu_quota"
    assert report.verdict.share == pytest.approx(lost)


def test_writing_log_probabilities_costs_what_the_core_waits_meanwhile() -> None:
    """Seen: of what the front end writes, a quiet machine's other core does the most."""
    shares = []
    for waits in (0.0, 2.0):
        host = HostUse(10.0, 4, 30.0, 30.0, 0.0, waits, [waits, 0.0, 0.0, 0.0])
        report = explain(
            healthy(host=host, parts={"sample": 3.0, "send": 5.0}, mix={"logprobs": 8})
        )
        assert report.verdict.cause == "logprobs"
        shares.append(report.verdict.share)
    assert shares == pytest.approx([0.2, 0.4])
