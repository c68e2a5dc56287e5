"""The phases of a start follow one another and add up."""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import Any

import pytest

from quire.bench import startup
from quire.core.errors import QuireError
from tests.unit.bench.parsed import bench_args

REPORT = {
    "begun": 100.5,
    "imported": 101.0,
    "ready": 104.0,
    "first_token": 104.25,
    "phases": {"import_ops": 1.0, "load_weights": 1.5},
    "dtype": "float32",
}


def test_the_phases_by_hand() -> None:
    row = startup.sample(100.0, REPORT)
    assert row["start_to_first_token_s"] == 4.25
    assert list(row["phases"].items()) == [
        ("python", 0.5),
        ("import_quire", 0.5),
        ("import_ops", 1.0),
        ("load_weights", 1.5),
        ("other", 0.5),
        ("first_token", 0.25),
    ]
    assert sum(row["phases"].values()) == row["start_to_first_token_s"]


def flags(*argv: str) -> argparse.Namespace:
    return bench_args("startup", *argv)


def test_one_process_a_repetition_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads: list[dict[str, Any]] = []

    def start_child(payload: str) -> tuple[float, dict[str, Any]]:
        payloads.append(json.loads(payload))
        return 100.0 - len(payloads), REPORT

    monkeypatch.setattr(startup, "start_child", start_child)
    row = startup.run(flags("--input-len", "4", "--repetitions", "3", "--model", "m"))
    assert list(row)[:2] == ["start_to_first_token_s", "phases"]
    assert [p["input_len"] for p in payloads] == [4] * 4
    assert {p["model"] for p in payloads} == {"m"}
    assert row["min"]["start_to_first_token_s"] == 4.25 + 2
    assert row["start_to_first_token_s"] == 4.25 + 3
    assert row["max"]["phases"]["python"] == 0.5 + 4
    assert row["repetitions"] == 3


def test_a_child_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*args: Any, **kwargs: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], 1, b"", b"Traceback\nConfigError: no such thing\n")

    monkeypatch.setattr(subprocess, "run", failed)
    with pytest.raises(QuireError, match="ConfigError: no such thing"):
        startup.start_child("{}")
