"""Measure each kind of bar with the existing benchmarks, each in its own process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.bars.bar import Against, Floor, Load, Memory, Seen, Setup, Start, Subject
from benchmarks.bars.pool import Pool
from quire.bench.results.report import Row
from quire.bench.startup import sample, start_child
from quire.core.config import STEP_TOKENS
from quire.core.errors import QuireError
from quire.resolve.arguments import EngineArgs
from quire.system import env
from quire.system.records import dataclass

BLOCK_SIZE = 16
START_TOKENS = 16
"""Prompt tokens of a start, as in `bench startup`."""


class NotMeasuredError(QuireError):
    """This machine lacks something that the measurement needs."""

    code = "not_measured"


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures the subjects of bars.

    Attributes:
        checkpoint: returns a preset's folder of weights, creating it if needed.
    """

    pool: Pool
    repetitions: int
    checkpoint: Callable[[str], Path]
    seed: int = 0

    def measure(self, subject: Subject) -> Seen:
        """Measure one bar's subject.

        Raises:
            NotMeasuredError: no peer is installed.
            QuireError: a benchmark failed.
        """
        match subject:
            case Floor():
                return self._floor(subject)
            case Against():
                return self._against(subject)
            case Memory():
                return self._memory(subject)
            case Start():
                return self._start(subject)

    def _floor(self, subject: Floor) -> Seen:
        row = self._latency(subject.setup, subject.load)
        names = ("decode_tok_s", "tpot_ms", "bandwidth_gb_s", "weight_bytes", "kv_bytes_per_token")
        low, high = row["min"]["floor_fraction"], row["max"]["floor_fraction"]
        facts = {name: row[name] for name in names}
        return Seen(row["floor_fraction"], low, high, row["repetitions"], facts)

    def _memory(self, subject: Memory) -> Seen:
        model = str(self.checkpoint(subject.setup.model)) if subject.stored else None
        row = self._latency(subject.setup, subject.load, model)
        tokens = subject.load.num_blocks(BLOCK_SIZE) * BLOCK_SIZE
        held = row["weight_bytes"] + tokens * row["kv_bytes_per_token"]
        value, low, high = (
            found["peak_rss_bytes"] - held for found in (row, row["min"], row["max"])
        )
        facts = {"peak_rss_bytes": row["peak_rss_bytes"], "weights_and_kv_bytes": held}
        return Seen(value, low, high, row["repetitions"], facts)

    def _against(self, subject: Against) -> Seen:
        samples = self.pool.compare(subject, self.repetitions, self.seed)
        missing = self.pool.missing(subject)
        if len(samples) < 2:
            raise NotMeasuredError("; ".join(missing))
        return ratios(samples, as_time=subject.as_time, facts={"missing": missing or None})

    def _start(self, subject: Start) -> Seen:
        model = str(self.checkpoint(subject.model))
        args = EngineArgs(model=model, dtype="bfloat16", seed=self.seed)
        payload = json.dumps(asdict(args) | {"input_len": START_TOKENS})
        samples = []
        with tempfile.TemporaryDirectory() as kept:
            for repetition in range(-1, self.repetitions):  # the first warms the file cache
                if subject.cold:
                    with tempfile.TemporaryDirectory() as folder:
                        found = sample(*start_child(payload, QUIRE_CACHE_DIR=folder))
                else:
                    found = sample(*start_child(payload, QUIRE_CACHE_DIR=kept))
                if repetition >= 0:
                    samples.append(found)
        names = samples[0]["phases"]
        phases = {name: statistics.median(s["phases"][name] for s in samples) for name in names}
        return Seen.of([s["start_to_first_token_s"] for s in samples], {"phases": phases})

    def _latency(self, setup: Setup, load: Load, stored: str | None = None) -> Row:
        """Return the row of `bench latency`, run in its own process to measure its memory.

        Args:
            stored: the folder of the model; random weights and no tokenizer if None.
        """
        fields: dict[str, Any] = setup.fields() | {
            "num_gpu_blocks_override": load.num_blocks(BLOCK_SIZE),  # repetitions fill them all
            "max_model_len": load.max_len,
            "max_num_seqs": load.count,
            # All prompts in one step, so that the rest is pure decoding.
            "max_num_batched_tokens": max(STEP_TOKENS, load.count * load.input_len),
        }
        if stored is not None:
            fields |= {"model": stored, "load_format": None}
        words = [f"--{name.replace('_', '-')}={v}" for name, v in fields.items() if v is not None]
        words += [f"--batch-size={load.count}", f"--repetitions={self.repetitions}"]
        words += [f"--input-len={load.input_len}", f"--output-len={load.output_len}"]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "row.json"
            run_module("quire", "bench", "latency", *words, f"--json={file}")
            row: Row = json.loads(file.read_text())
        return row


def run_module(module: str, *words: str) -> str:
    """Return the standard output of `python -m module`.

    Raises:
        QuireError: it failed; with its last line.
    """
    command = [sys.executable, "-m", module, *words]
    home = env.of_child(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, env=home
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        raise QuireError(f"{module} failed: {''.join(last) or done.returncode}")
    return done.stdout


def ratios(samples: Mapping[str, list[float]], *, as_time: bool, facts: Row) -> Seen:
    """Return the ratios of the first engine to the best other one, one per repetition.

    Args:
        samples: engine → its rates.
        as_time: ratio of times: the other engine's rates over the first one's.
    """
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ours, *others = samples
    best = max(others, key=lambda name: medians[name])
    pairs = zip(samples[ours], samples[best], strict=True)
    values = [b / a if as_time else a / b for a, b in pairs]
    return Seen.of(values, {"tok_s": medians, "against": best, **facts})
