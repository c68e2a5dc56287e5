"""`pytest --forks N`: it reports what all processes did, also of one that dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {
    "test_a.py": """
import os, signal, pytest
def test_good(): pass
def test_wrong():
    print("shown")
    assert 1 == 2
def test_dead(): os.kill(os.getpid(), signal.SIGKILL)
def test_lost(): pass
""",
    "test_b.py": """
import pytest
@pytest.fixture(scope="module")
def kept():
    yield
    raise ValueError("too late")
@pytest.mark.parametrize("number", range(20))
def test_many(kept, number): pass
def test_left_out(kept): pytest.skip("why")
""",
}


def run(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "--forks", "2"]
    command += ["-c", "pyproject.toml", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode
    return done.stdout + done.stderr


def test_all_results_are_those_of_one_process(tmp_path: Path) -> None:
    said = run(tmp_path, FILES)
    assert "2 failed, 21 passed, 1 skipped, 1 error" in said
    assert "the process that ran test_a.py::test_dead has ended" in said
    assert "ValueError: too late" in said
    assert "shown" in said


def test_threads_that_a_fork_would_lose_are_refused(tmp_path: Path) -> None:
    starts = "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()\n"
    said = run(tmp_path, {"test_c.py": starts + "def test_one(): pass\n"})
    assert "a test module starts threads" in said
