"""Small budgets of what `make fuzz` does for longer; a failure names the request to replay."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.fuzz import cluster, frames, grammars, http, images, parsers, replay, schemas, templates

REQUESTS = 20_000
PARTS = 20


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What is wrong with each request is not to be told of one by one."""
    caplog.set_level(logging.CRITICAL, logger="quire")


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed else []) for seed in range(PARTS)]
)
async def test_fuzzed_requests_leave_the_engine_alive(seed: int) -> None:
    statuses = await http.fuzz(REQUESTS // PARTS, seed)
    assert statuses[200] > 40
    assert statuses[400] > 400


@pytest.mark.parametrize("share", [0.15, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("module", "cases", "outcome"),
    [
        (parsers, 1500, "calls"),
        (images, 4000, "read"),
        (templates, 1500, "rendered"),
        (grammars, 700, "ended"),
        (schemas, 400, "exact"),
    ],
)
def test_whatever_is_said_is_read_or_refused(
    module: Any, cases: int, outcome: str, share: float
) -> None:
    cases = int(cases * share)
    outcomes = replay.run(module.__name__, module.case, cases, seed=0)
    assert outcomes[outcome] > cases // 50


def test_fuzzed_frames_between_machines_end_nothing() -> None:
    """And no connection delays the next one."""
    assert cluster.fuzz(4000, 0) > 1000


def test_fuzzed_frames_leave_the_core_alive() -> None:
    dropped, answers = frames.fuzz(4000, 0)
    assert dropped > 1000
    assert answers > 200
