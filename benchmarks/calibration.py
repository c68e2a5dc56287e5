"""How true is `quire simulate`? Its prediction beside `quire bench serve`, on this machine.

    python benchmarks/calibration.py [--json FILE.jsonl] [--repetitions N]

In each repetition, for each of three loads, the machine is measured with the load's model, the load
is served, and it is simulated with the same flags: a machine that is slower for a while is so for
all three. A ratio is predicted over measured; the medians of the repetitions count. The machine
should be idle but for this. The exit status is 1 where a median is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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
    "opt-125m, 2 requests a second": [
        *MODELS["opt-125m"],
        *("--num-clients", "32", "--request-rate", "2", "--num-prompts", "60"),
        *("--input-len", "256", "--output-len", "64"),
    ],
    "qwen3-0.6b, 8 clients": [
        *MODELS["qwen3-0.6b"],
        *("--max-model-len", "4096"),
        *("--num-clients", "8", "--num-prompts", "24", "--input-len", "128", "--output-len", "64"),
    ],
}
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
        command = [sys.executable, "-m", "quire.cli.main", *words, "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)} failed:\n{done.stderr}")
        row: dict[str, Any] = json.loads(file.read_text())
        return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="append a row for each load")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--load", choices=LOADS, action="append", help="one of them only")
    args = parser.parse_args()
    worst = 0.0
    print(f"{'':32}{'':14}{'measured':>12}{'predicted':>12}{'ratio':>8}  ratios")
    for name in args.load or LOADS:
        pairs = [compare(LOADS[name]) for _ in range(args.repetitions)]
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


def compare(flags: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The load served, and as `quire simulate` predicts it for the machine as it is now."""
    measured = quire("bench", "serve", *flags, "--repetitions", "2")
    return measured, quire("simulate", *flags, "--hardware", "this")


if __name__ == "__main__":
    sys.exit(main())
