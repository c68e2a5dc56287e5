"""The default trace: bounded on disk, and harmless if it cannot be written."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from quire.core.config import ProfilerConfig
from quire.profile import trace_profiler
from quire.profile.trace_profiler import TraceProfiler


def record(cache: Path, monkeypatch: pytest.MonkeyPatch) -> TraceProfiler:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(cache))
    profiler = TraceProfiler(ProfilerConfig(), [])
    profiler.start()
    with profiler.step("step 0"):
        pass
    profiler.shutdown()
    return profiler


def test_the_default_folder_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for age in range(trace_profiler.KEPT_TRACES):
        old = folder / f"quire_{age}.1.trace.json.gz"
        old.touch()
        os.utime(old, (1e9 - age, 1e9 - age))
    [name] = record(tmp_path, monkeypatch).files
    kept = {file.name for file in folder.iterdir()}
    oldest = trace_profiler.KEPT_TRACES - 1
    assert kept == {name, *(f"quire_{age}.1.trace.json.gz" for age in range(oldest))}


def test_a_folder_that_cannot_be_made_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        profiler = record(tmp_path / "file", monkeypatch)
    assert profiler.files == []
    assert profiler.failures == ["Not a directory"]
    assert len(caplog.records) == 1
