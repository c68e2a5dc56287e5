"""Settings, tracers and profilers that slow Python are seen in the engine's processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quire.explain.python import debugging, tracing


def process(root: Path, pid: int, environment: str, command: str) -> None:
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    (folder / "environ").write_text(environment.replace(" ", "\0"))
    (folder / "cmdline").write_text(command.replace(" ", "\0"))


@pytest.mark.parametrize(
    ("environment", "command", "found"),
    [
        ("HOME=/ PYTHONDEVMODE=1", "python -m quire serve", ["PYTHONDEVMODE"]),
        ("PYTHONDEVMODE= PYTHONMALLOC=pymalloc PYTHONPATH=x", "python -m quire", []),
        ("PYTHONTRACEMALLOC=5", "python -X dev -m quire", ["PYTHONTRACEMALLOC", "-X dev"]),
        ("", "python -m cProfile -m quire serve", ["-m cProfile"]),
        ("", "python -X utf8 -m quire serve -m trace", []),
    ],
)
def test_settings(tmp_path: Path, environment: str, command: str, found: list[str]) -> None:
    process(tmp_path, 7, environment, command)
    process(tmp_path, 8, environment, command)
    assert debugging([7, 8, 9], tmp_path) == found


def test_tracers_of_this_thread() -> None:
    before, profile = tracing(), sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        assert "sys.setprofile (cProfile)" in tracing()
    finally:
        sys.setprofile(profile)
    assert tracing() == before
