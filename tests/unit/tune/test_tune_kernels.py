"""`quire tune kernels` on a tiny model: what it prints and writes, and that engines load it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from quire.bench.kernels import case
from quire.cli.main import main
from quire.ops.native.kernels import available_isas
from quire.ops.providers import load_ops
from quire.ops.tuning import load_tuning, tuned_folder
from quire.tune.kernels import command
from quire.tune.kernels.search import Found, Subject

FLAGS = ["--model", "embedded", "--rows", "1", "4", "--context", "32", "--num-threads", "1"]
QUICK = [*FLAGS, "--repetitions", "1", "--seconds", "0.0001"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(case, "_MAX_COPIES", 4)  # of a weight, to find it in memory
    return tmp_path


def tune(*flags: str) -> int:
    return main(["tune", "kernels", *QUICK, *flags])


def always_found(subject: Subject, rounds: int, seconds: float) -> Found:
    """The first value of each field; the calls are made once with all of them."""
    values = {field: tried[0] for field, tried in subject.fields.items()}
    subject.apply(values)
    for call in subject.calls:
        call(0)
    return Found(values, 0.25)


def test_what_is_found_is_written_and_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "search", always_found)
    assert tune("--quantization", "none", "int4") == 0
    out = capsys.readouterr().out
    assert "25.0% faster with group_bytes 32768, thread_tasks 2, ahead_bytes -1" in out
    assert "engines load from now on" in out
    isa = available_isas()[-1]
    tuned = load_tuning(isa, 1)
    assert {t.kind for t in tuned.gemm} == {"bf16", "u4", "u6"}
    assert {t.rows for t in tuned.gemm} == {(1, 1), (2, 4)}
    assert [t.kv_dtype for t in tuned.attention] == ["bfloat16"]
    assert tune() == 0
    assert "Nothing to write." in capsys.readouterr().out


def test_the_log_names_the_file(caplog: pytest.LogCaptureFixture) -> None:
    load_ops("cpu")
    assert "tuned" not in caplog.text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "search", always_found)
        tune("--op", "attention")
    with caplog.at_level(logging.INFO):
        load_ops("cpu")
    (file,) = tuned_folder().iterdir()
    assert str(file) in caplog.text


def test_a_real_search_on_the_smallest_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune() == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("gemm ") for line in lines) >= 8
    assert sum(line.startswith("attention ") for line in lines) == 1


def test_searches_beside_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "core_cpus", lambda: 2 * [sorted(os.sched_getaffinity(0))])
    monkeypatch.setattr(command, "_check", lambda *_: None)
    assert tune("--jobs", "2", "--op", "attention", "--kv-cache-dtype", "auto", "int8") == 0
    assert capsys.readouterr().out.count("attention ") == 2


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--isa", "sse9"], "It can run"),
        (["--jobs", "4096"], "they would slow each other"),
        (["--rows", "0"], "is not at least 1"),
        (["--op", "sort"], "invalid choice"),
    ],
)
def test_what_cannot_be_is_refused(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = tune(*flags)
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    assert status == 2
    assert reason in capsys.readouterr().err
