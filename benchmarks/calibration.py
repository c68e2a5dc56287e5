"""How true is `quire simulate`? Its prediction beside `quire bench serve`, on this machine.

    python benchmarks/calibration.py [--json FILE.jsonl] [--repetitions N]

In each repetition, for each load, the machine is measured with the load's model, the load
is served, and it is simulated with the same flags: a machine that is slower for a while is so for
all three. A ratio is predicted over measured; the medians of the repetitions count. The machine
should be idle but for this. The exit status is 1 where a median is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from quire.bench.results.report import jsonl

BAR = 0.15
MODELS = {
    name: ["--model", name, "--load-format", "dummy", "--dtype", "bfloat16"]
    for name in ("opt-125m", "qwen3-0.6b")
}
LOADS: dict[str, list[str]] = {
    "opt-125m, 8 clients": [
        *MODELS["opt-125m"],
        *("--num-clients", "8", "--num-prompts", "64", "--input-len", "128", "--output-len", "64"),
    ],
    "opt-125m, 8 clients, mixed": [*MODELS["opt-125m"], "--num-clients", "8"],
    "opt-125m, 2 requests a second": [*MODELS["opt-125m"], "--num-clients", "32"],
    "opt-125m, 4 requests a second": [*MODELS["opt-125m"], "--num-clients", "32"],
    "qwen3-0.6b, a request in 2 seconds": [
        *MODELS["qwen3-0.6b"],
        *("--max-model-len", "4096", "--num-clients", "32"),
    ],
    "qwen3-0.6b, 8 clients": [
        *MODELS["qwen3-0.6b"],
        *("--max-model-len", "4096"),
        *("--num-clients", "8", "--num-prompts", "24", "--input-len", "128", "--output-len", "64"),
    ],
    "qwen3-0.6b, 8 clients, mixed": [
        *MODELS["qwen3-0.6b"],
        *("--max-model-len", "4096", "--num-clients", "8"),
    ],
}
TRACES = {
    "opt-125m, 2 requests a second": (60, 2.0, 256, 64),
    "opt-125m, 4 requests a second": (80, 4.0, 128, 32),
    "qwen3-0.6b, a request in 2 seconds": (24, 0.5, 128, 32),
    "opt-125m, 8 clients, mixed": (64, math.inf, 128, 64),
    "qwen3-0.6b, 8 clients, mixed": (24, math.inf, 128, 64),
}
"""Requests, a second, prompt and output tokens: both sides must get the same moments of arrival.
Where clients ask again at once, lengths lie between half of these and half as many again: clients
whose requests are all alike march in step, and who is computed with whom hangs on milliseconds."""
VALUES = {
    "output tok/s": lambda row: row["output_tok_s"],
    "TTFT p50": lambda row: row["ttft_ms"]["p50"],
    "ITL p50": lambda row: row["itl_ms"]["p50"],
    "E2E p50": lambda row: row["e2e_ms"]["p50"],
}


def quire(*words: str) -> dict[str, Any]:
    """The row that a command writes to the file after its `--json`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"
        command = [sys.executable, "-m", "quire", *words, "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)} failed:\n{done.stderr}")
        row: dict[str, Any] = json.loads(file.read_text())
        return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=jsonl, help="append a row for each load")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--load", choices=LOADS, action="append", help="one of them only")
    args = parser.parse_args()
    worst = 0.0
    print(f"{'':32}{'':14}{'measured':>12}{'predicted':>12}{'ratio':>8}  ratios")
    for name in args.load or LOADS:
        pairs = [compare(name) for _ in range(args.repetitions)]
        ratios = {}
        for title, value in VALUES.items():
            was = [value(measured) for measured, _ in pairs]
            said = [value(predicted) for _, predicted in pairs]
            each = [s / w for s, w in zip(said, was, strict=True)]
            ratios[title] = statistics.median(each)
            worst = max(worst, abs(ratios[title] - 1))
            print(
                f"{name:32}{title:14}{statistics.median(was):12.2f}{statistics.median(said):12.2f}"
                f"{ratios[title]:8.2f}  {', '.join(f'{x:.2f}' for x in each)}"
            )
        if args.json is not None:
            row = {"bench": "calibration", "load": name, "ratios": ratios}
            row |= {key: pairs[0][0][key] for key in ("machine", "commit", "date")}
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    print(f"worst: {worst:.0%} off (bar: {BAR:.0%})")
    return 1 if worst > BAR else 0


def compare(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The load served, and as `quire simulate` predicts it for the machine as it is now."""
    with tempfile.TemporaryDirectory() as folder:
        serve, simulate = [*LOADS[name]], [*LOADS[name]]
        if name in TRACES:
            trace = Path(folder) / "trace.jsonl"
            trace.write_text("".join(f"{json.dumps(line)}\n" for line in requests(*TRACES[name])))
            serve += ["--dataset-name", "trace", "--dataset-path", str(trace)]
            simulate += ["--trace", str(trace)]
        measured = quire("bench", "serve", *serve, "--repetitions", "2")
        return measured, quire("simulate", *simulate, "--hardware", "this")


def requests(count: int, rate: float, input_len: int, output_len: int) -> list[dict[str, Any]]:
    """A Poisson process, or with an infinite rate no moments at all, as lines of a trace."""
    rng, moment = Random(0), 0.0
    lines = []
    for _ in range(count):
        if math.isinf(rate):
            mixed = [rng.randint(n // 2, n + n // 2) for n in (input_len, output_len)]
            lines.append({"input_len": mixed[0], "output_len": mixed[1]})
            continue
        lines.append({"arrival": moment, "input_len": input_len, "output_len": output_len})
        moment += rng.expovariate(rate)
    return lines


if __name__ == "__main__":
    sys.exit(main())
