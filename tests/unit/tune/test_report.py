"""The report says what was found, and why."""

from __future__ import annotations

import json
import math

from quire.tune.report import Facts, comments, curve, headline, to_json, to_markdown
from quire.tune.search import Result, Search
from tests.unit.tune.modelled import Modelled, Oracle, measurement
from tests.unit.tune.test_search import SPACE, START, modelled


def facts() -> Facts:
    ops = [
        {"name": "linear", "seconds": 0.9, "nbytes": 9 * 10**9},
        {"name": "attention", "seconds": 0.1, "nbytes": 10**9},
    ]
    return Facts(
        model="m",
        slo="ttft=0.5",
        attainment=0.95,
        load="8 requests",
        machine={"cpu": "a CPU", "cores": 2},
        command="quire tune m",
        share=0.86,
        resumed=3,
        verified=measurement(6.0, 6.6, 11.0),
        verified_start=measurement(2.0, 3.0, 4.0),
        ops={"steps": 9, "ops": ops},
        files={"the configuration": "config.yaml"},
    )


def found(bench: Modelled | None = None) -> Result:
    bench = bench or modelled()
    return Search(SPACE, START, bench, Oracle(bench), attainment=0.95, max_runs=20).run()


def test_everything_is_reported() -> None:
    result = found()
    text = to_markdown(result, facts())
    assert "times the start's" in text
    assert "| max-num-seqs | 64 | 32 |" in text
    assert "| block-size | 16 | 32 |" in text
    assert "requests/s, +10%" in text
    assert "| linear | 90.0% | 10.0 |" in text
    assert "starts with at most 86%" in text
    assert "3 measurements are from an earlier start" in text
    assert "(100% of the requests), the start 2 (100%)." in text
    for trial in result.trials:
        assert trial.why in text
    for heading in ("What changed", "Where the time goes", "What was measured", "What was skipped"):
        assert f"## {heading}" in text
    assert "not measured separately" not in text.split("| block-size")[1].split("\n")[0]


def test_json_holds_it_all() -> None:
    result = found()
    data = json.loads(to_json(result, facts()))
    assert len(data["result"]["trials"]) == len(result.trials)
    assert data["facts"]["slo"] == "ttft=0.5"


def test_nothing_meets_the_objective() -> None:
    result = found(Modelled(lambda c: 0.0, lambda c: 9.0))
    assert result.best is None
    assert "cannot meet the objective" in headline(result, facts())
    assert "What changed" not in to_markdown(result, facts())


def test_the_start_is_the_best() -> None:
    result = found(Modelled(lambda c: 5.0, lambda c: 10.0))
    assert headline(result, facts()).startswith("Nothing was better than the start")
    assert comments(result, facts())[1] == headline(result, facts())


def test_the_curve_has_no_point_that_another_beats() -> None:
    points = [(run.requests_s, run.e2e_ms["p99"]) for _, run in curve(found())]
    assert points == sorted(points)
    assert [wait for _, wait in points] == sorted(wait for _, wait in points)
    assert all(math.isfinite(rate) for rate, _ in points)
