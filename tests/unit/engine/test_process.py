"""The standby process's imports take no core from requests."""

from __future__ import annotations

import os
import sys

import pytest

from quire.engine.process import NICENESS, _at_low_priority

linux = pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")


@linux
def test_imports_run_while_cores_are_idle() -> None:
    policies = [os.sched_getscheduler(0)]
    _at_low_priority(lambda: policies.append(os.sched_getscheduler(0)))
    assert policies == [os.sched_getscheduler(0), os.SCHED_IDLE]


@linux
def test_a_system_that_refuses_that_lowers_their_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    before, found = os.getpriority(os.PRIO_PROCESS, 0), list[int]()
    _at_low_priority(lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
    assert found == [NICENESS]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
