"""A verdict says how sure it is."""

from __future__ import annotations

import math

import msgspec
import pytest

from quire.explain.analyse import explain
from quire.explain.confidence import GUESSED, MEASURED
from quire.explain.evidence import Evidence
from quire.explain.host import HostUse
from quire.explain.report import Report
from tests.unit.explain.made import healthy, profile

UNBOUND = profile(("linear", "layers.0.mlp.up", 9.0, 10.0, 40.0), model_seconds=9.1)
LATE = healthy(parts={"receive": 4.0}, ops=UNBOUND)
"""An engine with gaps between its steps, which is an estimate."""


def error_of(report: Report, share: float) -> float:
    """Return the error of the first gain, from that of the saved share and from 1,000 steps."""
    return math.hypot(share * (1.0 + report.changes[0].estimated_gain), 1000**-0.5)


def split(first: Evidence, second: Evidence) -> Evidence:
    halves = [evidence.window for evidence in (first, second)]
    return msgspec.structs.replace(first, halves=halves)


def test_what_counts_prove_is_surer_than_an_estimate() -> None:
    seats = explain(healthy(args={"max_num_seqs": 8}, waiting=24.0, ops=UNBOUND)).verdict
    gaps = explain(LATE).verdict
    assert (seats.cause, gaps.cause) == ("queueing", "idle_gaps")
    assert seats.confidence > gaps.confidence


def test_few_steps_other_load_and_guessed_limits_make_it_less_sure() -> None:
    sure = explain(LATE)
    crowd = HostUse(10.0, 4, busy=30.0, own=20.0, steal=0.0, waited=0.1)
    for unsure in (
        explain(msgspec.structs.replace(LATE, host=crowd)),
        explain(msgspec.structs.replace(LATE, limits=None)),
        explain(healthy(parts={"receive": 4.0}, ops=UNBOUND, steps=10, step_sizes=[(8.0, 10)])),
    ):
        found = {finding.cause: finding.confidence for finding in unsure.causes}
        assert found["idle_gaps"] < sure.verdict.confidence
    assert sure.changes[0].uncertainty == pytest.approx(error_of(sure, MEASURED))
    guessed = explain(msgspec.structs.replace(LATE, limits=None))
    assert guessed.changes[0].uncertainty == pytest.approx(error_of(guessed, GUESSED))


def test_halves_that_disagree_are_reported() -> None:
    same, other = explain(split(LATE, LATE)), explain(split(LATE, healthy(ops=UNBOUND)))
    assert not any("half" in note for note in same.notes)
    assert any(
        "first half of the window names idle_gaps, the second none" in n for n in other.notes
    )
    assert other.verdict.confidence < same.verdict.confidence


def test_halves_that_predict_other_gains_widen_the_range() -> None:
    shorter = healthy(parts={"receive": 2.0}, ops=UNBOUND)
    same, other = (explain(split(LATE, half)).changes[0] for half in (LATE, shorter))
    assert same.estimated_gain == other.estimated_gain
    assert other.uncertainty > same.uncertainty + 0.2
