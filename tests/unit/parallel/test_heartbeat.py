"""Heartbeats of machines that are stopped now and then."""

from __future__ import annotations

import socket
import time
from itertools import chain, repeat
from threading import Timer
from types import SimpleNamespace

import pytest

from quire.parallel import heartbeat
from quire.parallel.heartbeat import SILENT_SECONDS, Loss, wait_for_loss


def test_a_process_that_was_stopped_blames_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on before one of the others, and hears only of the second one."""
    real, gaps = time.monotonic, chain((0.0, 0.0), repeat(SILENT_SECONDS + 1))
    clock = SimpleNamespace(monotonic=lambda: real() + next(gaps))
    (slow, its), (quick, end) = socket.socketpair(), socket.socketpair()
    with slow, its, quick, end:
        monkeypatch.setattr(heartbeat, "time", clock)
        timers = [Timer(seconds, end.send, [b"\0"]) for seconds in (0.2, 0.4)]
        timers.append(Timer(0.8, its.send, [b"\0\0\0\1\xc0"]))
        for timer in timers:
            timer.start()
        assert wait_for_loss({slow: "slow", quick: "quick"}) == Loss("slow", "was stopped")
        for timer in timers:
            timer.join()
