"""`quire tune` with real servers, killed on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.serving import QUIRE


@pytest.mark.slow  # unit/tune/test_study.py kills searches without servers
def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    study, output = tmp_path / "study", tmp_path / "best.yaml"
    load = ["--num-prompts", "4", "--input-len", "8", "--output-len", "4"]
    search = ["--max-runs", "2", "--hold", "gpu-memory-utilization", "--study", str(study)]
    command = [*QUIRE, "tune", "--slo", "e2e=60", *load, *search, "--output", str(output)]
    journal = study / "study.log"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (journal.exists() and '"run 0"' in journal.read_text()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    lines = [json.loads(line) for line in journal.read_text().splitlines() if '"run 0"' in line]
    measured = lines[0]["user_attr"]["run 0"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "earlier measurements" in done.stderr
    assert f"quire serve --config {output}" in done.stdout
    report = json.loads((study / "report.json").read_text())
    first = report["result"]["trials"][0]["runs"][0]
    assert first["goodput"] == measured["goodput"]
    assert report["facts"]["verified"]["attainment"] == 1.0
    shown = subprocess.run(
        [*QUIRE, "config", "--config", str(output)], capture_output=True, text=True, check=True
    )
    assert "model" in shown.stdout
