"""Row 47, at length: files that somebody has tampered with load, or give a typed error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits memory by /proc")
@pytest.mark.parametrize("share", [0.05, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "cases", "refused"),
    [
        ("safetensors", 16_000, 0.5),
        ("folder", 2_500, 0.5),
        ("quantized", 1_500, 0.3),
        ("gguf", 1_500, 0.5),
    ],
)
def test_tampered_files_load_or_are_refused(
    kind: str, cases: int, refused: float, share: float
) -> None:
    """In a process of its own, whose memory is limited and whose death would be seen."""
    if kind == "quantized":
        pytest.importorskip("torch")
    cases = int(cases * share)
    command = [sys.executable, "-m", "tests.fuzz.model_files", kind, "--cases", str(cases)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts: dict[str, int] = json.loads(done.stdout)
    assert sum(counts.values()) == cases
    assert counts["loaded"] > cases // 100
    assert counts["checkpoint_error"] > refused * cases
