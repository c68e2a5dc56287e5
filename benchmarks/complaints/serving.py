"""Complaints about many requests over HTTP, and about what is not there yet."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bars.bar import Seen
from benchmarks.bars.measure import run_module
from benchmarks.complaints.scenario import Scenario, seen


def _bench(command: str, *words: str) -> dict[str, Any]:
    """The row of `quire bench …`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"
        run_module("quire", "bench", command, *words, f"--json={file}")
        row: dict[str, Any] = json.loads(file.read_text())
    return row


_OPT = ("--model=opt-125m", "--load-format=dummy", "--dtype=bfloat16")


def clients(repetitions: int) -> Seen:
    """7935: output of 50 streaming clients over that of 50 sequences offline."""
    row = _bench(
        "overhead", *_OPT, "--streams=50", "--output-len=64", f"--repetitions={repetitions}"
    )
    found = row["streams_50"]
    return seen([found["http_over_offline"]], non_model_share=found["http"]["non_model_share"])


def event_loop(repetitions: int) -> Seen:
    """7935: the event loop's lag with 50 clients, p99."""
    row = _bench(
        "serve", *_OPT, "--num-clients=50", "--num-prompts=100", "--input-len=32",
        "--output-len=32", f"--repetitions={repetitions}",
    )  # fmt: skip
    lag = row["event_loop_lag_ms"]["p99"]
    return Seen(lag, lag, lag, repetitions, {"errors": row["errors"]})


def steady(repetitions: int) -> Seen:
    """9474: p99 of the whole answer in the second run over that in the first, at 80 % of what the
    server can do, requests coming at random."""
    common = ("--num-prompts=200", "--input-len=32", "--output-len=32", "--num-clients=256")
    most = _bench("serve", *common[:3], "--num-clients=16", "--repetitions=1")
    rate = 0.8 * most["output_tok_s"] / 32
    row = _bench("serve", *common, f"--request-rate={rate:.2f}", "--repetitions=2")
    slow, fast = row["max"]["e2e_ms"]["p99"], row["min"]["e2e_ms"]["p99"]
    return seen([slow / fast], rate=rate, errors=row["errors"], p99_ms=[fast, slow])


SCENARIOS = (
    Scenario(
        7935, "OpenAI client 5x slower", "50 streaming clients / 50 sequences offline", 0.9,
        clients,
    ),
    Scenario(
        7935, "OpenAI client 5x slower", "event-loop lag with 50 clients, p99", 10.0, event_loop,
        "ms", at_most=True,
    ),
    Scenario(
        9474, "slow under many requests", "p99 at 80 % of capacity, the worse of two runs / other",
        2.0, steady, at_most=True,
        without="leaks: make soak-server; 429: tests/faults, row 33",
    ),
    Scenario(
        20009, "KV hand-off hashes and serialises", "speed of the hand-off / memcpy", 0.5,
        "prompts and answers are computed by the same process; blocks to and from host memory: "
        "python benchmarks/kv_swap.py",
    ),
    Scenario(
        15330, "pipeline parallel slow at large batch", "bubble of two stages, 400 requests", 0.15,
        "pipeline parallelism is not there yet", "%", at_most=True,
    ),
)  # fmt: skip
