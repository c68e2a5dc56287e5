"""How true is `quire simulate`? Its prediction beside `quire bench serve`, on this machine.

    python benchmarks/calibration.py [--json FILE.jsonl] [--repetitions N]

The machine is measured once, then three loads are served and simulated with the same flags. A ratio
is predicted over measured; the machine should be idle but for this. The exit status is 1 where a
median is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import json
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
    parser.add_argument("--repetitions", type=int, default=3, help="of each load served")
    parser.add_argument("--hardware", type=Path, help="a saved profile in place of measuring")
    args = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        profile = args.hardware or Path(folder) / "this.json"
        if args.hardware is None:
            probe = [*MODELS["qwen3-0.6b"], "--num-prompts", "1"]
            quire("simulate", *probe, "--hardware", "this", "--save-hardware", str(profile))
        print(profile.read_text())
        print(f"{'':32}{'':14}{'measured':>12}{'predicted':>12}{'ratio':>8}")
        for name, flags in LOADS.items():
            measured = quire("bench", "serve", *flags, "--repetitions", str(args.repetitions))
            predicted = quire("simulate", *flags, "--hardware", str(profile))
            ratios = {}
            for title, value in VALUES.items():
                was, said = value(measured), value(predicted)
                ratios[title] = said / was
                worst = max(worst, abs(ratios[title] - 1))
                print(f"{name:32}{title:14}{was:12.2f}{said:12.2f}{said / was:8.2f}")
            if args.json is not None:
                row = {"bench": "calibration", "load": name, "ratios": ratios}
                row |= {key: measured[key] for key in ("machine", "commit", "date")}
                with args.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    print(f"worst: {worst:.0%} off (bar: {BAR:.0%})")
    return 1 if worst > BAR else 0


if __name__ == "__main__":
    sys.exit(main())
