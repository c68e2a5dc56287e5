"""`python -m benchmarks.complaints`: every issue has its row, and a row says what was seen."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.complaints import __main__ as command
from benchmarks.complaints import answers, scheduling
from benchmarks.complaints.scenario import Scenario, seen

REPOSITORY = Path(__file__).parents[3]
RATIO = Scenario(1, "it is slow", "how slow", 1.5, lambda _: seen([1.0, 2.0, 1.2]), at_most=True)


def test_every_issue_has_a_row() -> None:
    issues = {s.issue for s in command.SCENARIOS}
    assert len(issues) == 30
    table = (REPOSITORY / "docs" / "complaints.md").read_text()
    assert {int(n) for n in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == issues


def test_verdicts() -> None:
    assert [RATIO.met(v) for v in (1.4, 1.5, 1.6)] == [True, True, False]
    assert (RATIO.bar, replace(RATIO, unit="%", at_most=False).bar) == ("≤ 1.50×", "≥ 150.0 %")
    found = command.find(RATIO, 1)
    assert command.verdict(RATIO, found) == "met"
    assert "how slow: 1.20× (1.00× to 2.00×), bar ≤ 1.50×" in command.line(RATIO, found)
    row = command.row(RATIO, found)
    assert (row["value"], row["min"]["value"], row["verdict"]) == (1.2, 1.0, "met")


def test_what_fails_or_is_not_there_is_named() -> None:
    broken = replace(RATIO, measure=lambda _: 1 // 0)
    found = command.find(broken, 1)
    assert command.verdict(broken, found) == "failed"
    assert "ZeroDivisionError" in command.line(broken, found)
    absent = replace(RATIO, measure="nobody built it")
    found = command.find(absent, 1)
    assert command.verdict(absent, found) == "not there"
    assert command.row(absent, found)["why"] == "nobody built it"


@pytest.mark.parametrize(
    ("issue", "measure"),
    [
        (7883, scheduling.prefix_hits),
        (1562, scheduling.full_steps),
        pytest.param(13259, scheduling.first_of_many, marks=pytest.mark.slow),
        (12266, answers.forward_passes),
        pytest.param(15253, answers.preemption, marks=pytest.mark.slow),
        (18728, answers.scaled_positions),
        (18728, answers.static_warning),
        (20898, answers.embeddings),
    ],
)
def test_what_is_counted_and_not_timed_is_met(issue: int, measure: object) -> None:
    [scenario] = [s for s in command.SCENARIOS if s.measure is measure]
    assert scenario.issue == issue
    found = command.find(scenario, 1)
    assert not isinstance(found, str), found
    assert scenario.met(found.value), command.line(scenario, found)
