"""`make gpu-bars`: its command runs without a card, and its verdicts follow from the rows."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ALL = ("bits", "tests", "steps", "experts", "products", "attention", "models", "sampling",
       "latents", "recurrent", "prompts", "vllm")  # fmt: skip


@pytest.mark.parametrize(
    "parts", [("bits", "recurrent", "latents"), pytest.param(ALL, marks=pytest.mark.slow)], ids=len
)
def test_every_part_runs_without_a_card(parts: tuple[str, ...]) -> None:
    for module in ("torch", "triton"):
        pytest.importorskip(module)
    command = [sys.executable, str(BENCHMARKS / "gpu_bars.py"), "--dry-run", *parts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(rows) >= len(parts)
    assert all(row["card"] == "interpreter" and row["what"] for row in rows)
    assert sum(line.startswith("not measured") for line in lines) == 5
    assert "left out" not in done.stdout


CHILD = """
import sys, time
print('{"what": "first"}', flush=True)
print("a warning", flush=True)
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("then", "last"),
    [
        ("pass", {"what": "first"}),
        ("sys.exit(3)", {"what": "part", "error": "its process ended with 3"}),
        ("time.sleep(60)", {"what": "part", "error": "ended after 1 s"}),
    ],
)
def test_rows_of_a_process_that_ends_early_are_kept(then: str, last: dict[str, str]) -> None:
    rows_within = runpy.run_path(str(BENCHMARKS / "gpu_process.py"))["rows_within"]
    found = [*rows_within("part", [sys.executable, "-c", CHILD, then], 1)]
    assert found[0] == {"what": "first"}
    assert found[-1] == last
    assert len(found) == 1 + (last != found[0])


def decode(model: str, share: float, rate: float, *, graphs: bool = True) -> dict[str, Any]:
    return {
        "what": "decode 1 x 128 + 128", "model": model, "form": "bf16", "graphs": graphs,
        "bandwidth_share": share, "tok_s": rate,
    }  # fmt: skip


def test_bars_are_passed_missed_or_not_measured() -> None:
    verdicts = runpy.run_path(str(BENCHMARKS / "gpu_verdicts.py"))["verdicts"]
    rows = [
        decode("llama-3.2-1b", 0.81, 900.0),
        decode("llama-3.2-1b", 0.4, 500.0, graphs=False),
        decode("llama-3.1-8b", 0.8, 200.0) | {"form": "int4"},
        {"what": "attention 1 x 8192, 1 new", "seconds": 1.0, "flash_seconds": 1.2},
        {"what": "attention 64 x 2048, 1 new", "seconds": 1.0, "flash_seconds": 0.8},
        {"what": "tokens of 256 that differ alone", "count": 1},
        {"what": "experts", "error": "out of memory"},
    ]
    found = [line[:12].strip() for line in verdicts(rows)]
    assert found == ["passed", "not measured", "missed", "passed", "missed", "failed"]
    assert [line[:12] for line in verdicts([])] == ["not measured"] * 5
