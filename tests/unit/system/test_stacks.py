"""Samples of where this process's threads stand."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest

from quire.system import proc, stacks
from quire.system.stacks import Stacks, StackSampler

LONGEST = 20.0
"""Seconds until the awaited sample must have been taken."""


def until(found: Callable[[Stacks], bool]) -> Stacks:
    """Return samples of which this is true."""
    end = time.monotonic() + LONGEST
    while True:
        sampler = StackSampler()
        time.sleep(0.03)
        if found(seen := sampler.stop()) or time.monotonic() > end:
            return seen


def test_a_thread_of_other_code_is_seen_with_its_line() -> None:
    over = threading.Event()

    def telemetry() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=telemetry, name="telemetry")
    thread.start()
    try:
        seen = until(lambda seen: any(p.thread == "telemetry" for p in seen.places))
    finally:
        over.set()
        thread.join()
    [place, *_] = [p for p in seen.places if p.thread == "telemetry"]
    assert place.foreign
    assert place.where.startswith(f"{__file__}:")
    assert place.where.endswith(" telemetry")
    assert 0.0 <= place.slept < place.seconds
    assert seen.pid == os.getpid()


def test_quires_own_threads_are_left_out() -> None:
    """Only the main thread's time may be a step's or the event loop's."""
    first = StackSampler()
    seen = until(lambda seen: bool(seen.places))
    assert {p.thread for p in (*seen.places, *first.stop().places)} == {"MainThread"}


def test_the_innermost_code_outside_of_packages_decides() -> None:
    """This test's code called Quire's."""
    frames: list[FrameType] = []

    class File:
        def read_bytes(self) -> bytes:
            frames.append(sys._getframe(1))
            return b""

    proc.words(File())  # type: ignore[arg-type]
    sampler = StackSampler()
    sampler.stop()
    assert sampler._place(frames[0]) == ("system/proc.py:words", False, "")
    here = sys._getframe()
    where, foreign, called = sampler._place(here)
    assert (foreign, called) == (True, "")
    assert where.startswith(f"{__file__}:")


def test_collections_are_timed() -> None:
    sampler = StackSampler()
    callbacks = len(gc.callbacks)
    keep = [[n] for n in range(100_000)]
    gc.collect()
    seen = sampler.stop()
    assert 0.0 < seen.collecting <= seen.seconds
    assert len(gc.callbacks) == callbacks - 1
    del keep


def test_a_late_sample_counts_no_time_in_which_nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole process may have been stopped meanwhile."""
    monkeypatch.setattr(stacks, "_used", lambda _: 1.0)
    sampler = StackSampler()
    sampler._over.set()
    sampler._thread.join()
    sampler._last -= 100.0
    sampler._sample()
    assert sum(p.seconds for p in sampler.stop().places if p.thread == "MainThread") < 1.0
