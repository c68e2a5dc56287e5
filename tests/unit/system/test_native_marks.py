"""Notes of what native code is at: read while it is there, and when its process has gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quire.system.native_marks import KEY_BYTES, Note, make_file, make_marks, read_notes

A, B = b"a" * KEY_BYTES, b"b" * KEY_BYTES


def test_a_note_stands_from_enter_to_leave(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    make_file(path)
    first, second = make_marks(str(path), 3, 2)
    assert read_notes(path) == set()
    first.enter(A)
    second.enter(B)
    assert read_notes(path) == {Note(3, 1, A), Note(4, 1, B)}
    first.leave()
    first.enter(A)
    second.leave()
    assert read_notes(path) == {Note(3, 2, A)}  # another call of the same
    first.leave()
    assert read_notes(path) == set()


def test_a_note_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "marks"
    make_file(path)
    code = (
        "import os; from quire.system.native_marks import make_marks\n"
        f"make_marks({str(path)!r}, 0, 1)[0].enter({A!r}); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert read_notes(path) == {Note(0, 1, A)}


def test_without_a_file(tmp_path: Path) -> None:
    [mark] = make_marks(None, 0, 1)
    mark.enter(A)
    mark.leave()
    assert read_notes(tmp_path / "none") == set()
