"""Tests give the same result whatever their user has exported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXPORTED = {
    "COLUMNS": "40",
    "FORCE_COLOR": "1",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "QUIRE_API_KEY": "key",
    "QUIRE_LOG_LEVEL": "ERROR",
}


def test_exported_variables_change_no_result() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/unit/core/test_log.py"],
        cwd=ROOT,
        env=os.environ | EXPORTED,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
