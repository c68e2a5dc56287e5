"""Progress of a benchmark whose stderr is a log."""

from __future__ import annotations

import pytest

from quire.bench import progress


def test_a_log_gets_a_line_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 9.0, 10.0, 15.0, 21.0, 30.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.progress(total=5, unit="model") as bar:
        for _ in range(5):
            bar.update()
    assert capsys.readouterr().err.splitlines() == ["model 2 of 5", "model 4 of 5"]


def test_a_silent_one_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.progress(total=1, unit="request", silent=True) as bar:
        bar.update()
    assert capsys.readouterr().err == ""
