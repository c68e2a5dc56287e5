"""How many instructions a token costs besides the kernels: Python, numpy, libc.

    python benchmarks/step_cost.py [CHECKOUT …] [--streams 1 32] [--config JSON] [--json FILE.jsonl]

On a shared machine, Python's time is noise. Its instructions repeat within 1 %. Callgrind
(of Valgrind) counts them, for each checkout (default: this one) in turns. A checkout needs its
`_native` in src/quire; this Python runs all of them. A row has, per token:

* `whole`: `LLM.generate`, with its requests and texts;
* `core`: steps of the engine core, whose outputs nobody reads.

Kernels are left out: callgrind knows AVX2 at most, and their work does not depend on Python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from quire import LLM, SamplingParams
from quire.bench.machine import circumstances
from quire.bench.results.report import write_json
from quire.core.messages import AddRequest
from quire.core.request import pack_tokens

PARTS = ("whole", "core")
"""In the order in which `measure` dumps their counts."""
TOKENS, SETTLE = 96, 16
"""Tokens of each stream that are counted, and those before them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--config", default="{}", help="further engine arguments")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args)
        return
    for streams in args.streams:
        for checkout in args.checkouts:
            row: dict[str, object] = {"model": args.model, "streams": streams}
            row |= {"config": json.loads(args.config), "checkout": revision(checkout)}
            row |= per_token(checkout, args, streams)
            print(json.dumps(row), flush=True)
            if args.json:
                write_json(args.json, row | circumstances("step_cost"))


def per_token(checkout: Path, args: argparse.Namespace, streams: int) -> dict[str, int]:
    """Return the instructions of each part, without those of the kernels."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--dump-line=no"]
        command += [f"--callgrind-out-file={folder}/report", sys.executable, __file__, "--measure"]
        command += ["--streams", str(streams), "--model", args.model, "--config", args.config]
        given = os.environ | {"PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"}
        given |= {"OPENBLAS_NUM_THREADS": "1", "QUIRE_LOGGING_LEVEL": "ERROR"}
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        counts = [by_library(Path(folder, f"report.{i + 1}")) for i in range(len(PARTS))]
    if done.returncode or not all(counts):
        sys.exit(done.stderr)
    host = [sum(n for name, n in c.items() if "_native" not in name) for c in counts]
    return {part: n // (TOKENS * streams) for part, n in zip(PARTS, host, strict=True)}


def by_library(report: Path) -> Counter[str]:
    """Return the instructions by library of a callgrind report."""
    counts: Counter[str] = Counter()
    names: dict[str, str] = {}
    library, called = "", False
    for line in report.read_text().splitlines() if report.exists() else ():
        if found := re.fullmatch(r"(c?)ob=\((\d+)\)(?: (.*))?", line):
            callee, number, name = found.groups()
            names.setdefault(number, name or "")
            library = library if callee else names[number]
        elif line.startswith("calls="):
            called = True  # the next line is the cost of the callee, which has lines of its own
        elif found := re.fullmatch(r"[\d+*-]+ (\d+)", line):
            counts[library] += 0 if called else int(found[1])
            called = False
    return counts


def revision(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measure(args: argparse.Namespace) -> None:
    """Run the parts under callgrind. Prompts have several lengths, so blocks fill one by one."""
    llm = LLM(args.model, num_threads=1, **json.loads(args.config))
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    prompts = [[7, 8, 9, *range(number % 16)] for number in range(args.streams[0])]
    llm.generate(prompts, params.replace(max_tokens=SETTLE), use_tqdm=False)
    callgrind("--instr=on")
    llm.generate(prompts, params, use_tqdm=False)
    callgrind("--dump")
    callgrind("--instr=off")
    core = llm._core
    for number, prompt in enumerate(prompts):
        longer = params.replace(max_tokens=TOKENS + 2 * SETTLE)
        core.add(AddRequest(f"core-{number}", pack_tokens(prompt), longer, time.monotonic()))
    for _ in range(SETTLE):
        core.step()
    callgrind("--instr=on")
    for _ in range(TOKENS):
        core.step()
    callgrind("--dump")
    os._exit(0)


def callgrind(command: str) -> None:
    subprocess.run(["callgrind_control", command, str(os.getpid())], check=True)


if __name__ == "__main__":
    main()
