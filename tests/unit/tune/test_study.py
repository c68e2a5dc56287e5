"""Measurements outlive the process: resumed searches end as if nothing had happened."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import ConfigError, QuireError
from quire.tune.search import Result, Search, Trial
from quire.tune.study import Study
from tests.unit.tune.modelled import Modelled, Oracle
from tests.unit.tune.test_search import SPACE, START, modelled

optuna = pytest.importorskip("optuna")
SETTINGS = {"objective": "ttft=1", "bound": math.inf}


class KilledError(BaseException):
    """As SIGKILL: nobody catches it, and nothing is written any more."""


def run(folder: Path, bench: Modelled, loads: int | None = None) -> Result:
    """A search over a study, killed in the middle of a load after so many."""
    study = Study(folder, SETTINGS, SPACE)
    real, measured = bench.at, 0

    def at(*args: Any) -> Any:
        nonlocal measured
        if measured == loads:
            raise KilledError
        measured += 1
        return real(*args)

    bench.at = at  # type: ignore[method-assign]
    try:
        return Search(
            SPACE,
            START,
            study.bench(bench),
            Oracle(modelled()),
            attainment=0.95,
            max_runs=30,
            report=study.finish,
        ).run()
    finally:
        bench.at = real  # type: ignore[method-assign]
        study.close()


def test_resuming_gives_the_same_result(tmp_path: Path) -> None:
    whole = modelled()
    expected = run(tmp_path / "whole", whole)
    bench = modelled()
    for loads in (1, 0, 2, 5):
        with pytest.raises(KilledError):
            run(tmp_path / "cut", bench, loads)
    result = run(tmp_path / "cut", bench)
    assert result == expected
    # The load in flight is all that is done again.
    assert len(bench.loads) == len(whole.loads) + 4
    again = modelled()
    assert run(tmp_path / "cut", again) == expected
    assert again.starts == 0


def test_a_torn_journal_loses_one_record(tmp_path: Path) -> None:
    expected = run(tmp_path, modelled())
    journal = tmp_path / "study.log"
    data = journal.read_bytes()
    for cut in (len(data) - 1, len(data) - 40, len(data) // 2, len(data) // 3):
        journal.write_bytes(data[:cut])
        assert run(tmp_path, modelled()) == expected


def test_optuna_reads_it(tmp_path: Path) -> None:
    result = run(tmp_path, modelled())
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
    study = optuna.load_study(
        study_name="quire tune", storage=optuna.storages.JournalStorage(backend)
    )
    assert len(study.trials) == len(result.trials)
    assert all(trial.state.is_finished() for trial in study.trials)
    assert study.best_value == max(t.goodput for t in result.trials)
    assert study.best_params == result.best.configuration


def test_failures_are_remembered(tmp_path: Path) -> None:
    bench = Modelled(lambda c: 1.0, lambda c: 2.0, lambda c: True)
    for _ in range(2):
        study = Study(tmp_path, SETTINGS, SPACE)
        with study.bench(bench)(START) as measure, pytest.raises(QuireError, match="not start"):
            measure(1.0)
        study.finish(Trial(START, "start", [], None, ""))
        study.close()
    assert bench.starts == 1


def test_notes_are_stored(tmp_path: Path) -> None:
    study = Study(tmp_path, SETTINGS, SPACE)
    assert study.note("share") is None
    study.set_note("share", 0.5)
    study.close()
    study = Study(tmp_path, SETTINGS, SPACE)
    assert study.note("share") == 0.5
    study.close()


def test_other_settings_are_refused(tmp_path: Path) -> None:
    Study(tmp_path, SETTINGS, SPACE).close()
    with pytest.raises(ConfigError, match="has another objective"):
        Study(tmp_path, SETTINGS | {"objective": "ttft=2"}, SPACE)
    with pytest.raises(ConfigError, match="has another space"):
        Study(tmp_path, SETTINGS, SPACE | {"block_size": [16]})


def test_one_at_a_time(tmp_path: Path) -> None:
    study = Study(tmp_path, SETTINGS, SPACE)
    with pytest.raises(ConfigError, match="Another `quire tune`"):
        Study(tmp_path, SETTINGS, SPACE)
    study.close()
    Study(tmp_path, SETTINGS, SPACE).close()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--study .* cannot be written: Not a directory"):
        Study(tmp_path / "file" / "study", SETTINGS, SPACE)
