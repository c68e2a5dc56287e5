"""`quire bench startup`: time from process start to first token, by phase."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from quire.bench.machine import portable_name
from quire.bench.progress import progress
from quire.bench.results.report import Row, summarise
from quire.core.errors import QuireError
from quire.resolve.arguments import EngineArgs
from quire.system import env


def run(args: argparse.Namespace) -> Row:
    """Start one process per repetition, after one that warms the file cache."""
    payload = json.dumps(asdict(EngineArgs.from_cli_args(args)) | {"input_len": args.input_len})
    samples = []
    with progress(total=args.repetitions + 1, unit="start") as bar:
        for repetition in range(-1, args.repetitions):
            start, report = start_child(payload)
            if repetition >= 0:
                samples.append(sample(start, report))
            bar.update()
    row = summarise({}, samples)
    model: Row = {"model": portable_name(args.model), "dtype": report["dtype"]}
    return row | model | {"input_len": args.input_len}


def start_child(payload: str, **changes: str) -> tuple[float, dict[str, Any]]:
    """Start `quire.bench.startup_child`; return its start time and its report.

    Args:
        changes: environment variables to change.
    """
    command = [sys.executable, "-m", "quire.bench.startup_child", payload]
    start = time.monotonic()
    done = subprocess.run(command, env=env.of_child(**changes), capture_output=True, check=False)
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise QuireError(f"The started process failed: {''.join(last) or done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return start, report


def sample(start: float, report: dict[str, Any]) -> Row:
    """Return the total and its phases, which follow each other and add up to it.

    Phases: `python` until the first line of Python runs; `import_quire` until the front end is
    imported; the engine's own phases; `other`, the rest of the start; `first_token` from ready to
    the first token after a prompt of `input_len` tokens.

    Args:
        start: process start, in seconds of the monotonic clock.
        report: the child's times `begun`, `imported`, `ready` and `first_token` on the same clock,
            and the engine's `phases`.
    """
    engine: dict[str, float] = report["phases"]
    phases = {
        "python": report["begun"] - start,
        "import_quire": report["imported"] - report["begun"],
        **engine,
        "other": report["ready"] - report["imported"] - sum(engine.values()),
        "first_token": report["first_token"] - report["ready"],
    }
    return {"start_to_first_token_s": report["first_token"] - start, "phases": phases}
