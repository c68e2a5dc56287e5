"""What a GPU's kernels reach of the card's own limits: `make gpu-bars`.

    python benchmarks/gpu_bars.py [--dry-run] [--seconds N] [--output FILE] [PART …]

The limits are measured first: bytes/s of a copy that no cache holds, and FLOP/s of a large product
by torch. Then each kernel runs at the shapes of a 1B and an 8B model, and whole models of random
weights decode. Rows are JSON lines; each says the card, the median and the range of its
repetitions.

Parts run in the order of what their numbers decide: first whether results are right, then where a
step's time goes. Each part is a process with a time limit of its own (`PARTS`), so one that hangs
or crashes takes no other with it. Each row is written when it is there. At the end a line says of
each bar whether it passed.

`--dry-run` runs everything small on the CPU, in Triton's interpreter and in one process. It
measures nothing, and shows that the command works.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import gpu_kernels
import torch
from gpu_models import models
from gpu_process import rows_within
from gpu_prompts import compiled, norms, packages
from gpu_steps import beside, steps
from gpu_timing import Card, Row, measured
from gpu_verdicts import verdicts

from quire.ops.providers import open_device
from quire.ops.triton.provider import TritonOps

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/issue-27.jsonl"
TESTS = "tests/gpu/test_products.py"


def whole_models(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Decode of whole models; see `gpu_models`."""
    return models(card.name, card.bytes_per_second, real=card.real)


def decode_steps(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Where a step's time goes; see `gpu_steps`."""
    return steps(card.name, card.bytes_per_second, real=card.real)


def vllm(card: Card, ops: TritonOps) -> Iterator[Row]:
    """See `gpu_steps.beside`."""
    return beside(card.name, real=card.real)


def prompts(card: Card, ops: TritonOps) -> Iterator[Row]:
    """What options and fusions gain; see `gpu_prompts`."""
    yield from norms(card)
    yield from packages(card, ops, gpu_kernels.decoding)
    yield from compiled(card, ops)


def tests(card: Card, ops: TritonOps) -> Iterator[Row]:
    """Run the tests of products on the card; a test that fails has a row at once."""
    del ops
    command = [sys.executable, "-m", "pytest", "-v", "-n", "8", "-p", "no:cacheprovider"]
    command += [TESTS] if card.real else [TESTS, "--collect-only"]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    passed = 0
    for line in run.stdout or ():
        if " FAILED " in line or line.startswith("ERROR"):
            yield {"what": "a test", "card": card.name, "error": line.strip()[:300]}
        passed += " PASSED " in line
        if " PASSED " in line and passed % 10 == 0:
            yield {"what": "tests on the card", "card": card.name, "passed": passed}
    status = run.wait()
    yield {"what": "tests on the card", "card": card.name, "passed": passed, "status": status}


Rows = Callable[[Card, TritonOps], Iterator[Row]]


class Part(NamedTuple):
    """Rows, and the seconds after which their process is ended."""

    seconds: float
    rows: Rows


PARTS = {
    "bits": Part(60, gpu_kernels.same_bits),
    "tests": Part(150, tests),
    "steps": Part(120, decode_steps),
    "experts": Part(60, gpu_kernels.experts),
    "attention": Part(60, gpu_kernels.attention),
    "models": Part(240, whole_models),
    "products": Part(120, gpu_kernels.products),
    "latents": Part(40, gpu_kernels.latents),
    "recurrent": Part(40, gpu_kernels.recurrent),
    "sampling": Part(40, gpu_kernels.sampling),
    "prompts": Part(90, prompts),
    "vllm": Part(240, vllm),
}


def rows_of(name: str, card: Card, ops: TritonOps) -> Iterator[Row]:
    """Return the rows of a part; if it fails on a card, those before still count."""
    try:
        yield from PARTS[name].rows(card, ops)
    except Exception as error:  # a driver's, a compiler's, or memory's
        if not card.real:
            raise
        yield {"what": name, "card": card.name, "error": repr(error)[:500]}


def child(name: str, given: Sequence[str]) -> list[str]:
    """Return the command of a process that prints a part's rows."""
    return [sys.executable, __file__, "--child", name, "--limits", json.dumps(given)]


def run_child(name: str, limits: list[Any]) -> None:
    """Print the rows of a part; of "limits", those of the card."""
    if name == "limits":
        card = measured(dry=False)
        print(json.dumps({"limits": [card.name, card.bytes_per_second, card.flops]}), flush=True)
        return
    ops, (label, speed, flops) = TritonOps(open_device("cuda")), limits
    for row in rows_of(name, Card(label, torch.device("cuda"), speed, flops), ops):
        print(json.dumps(row), flush=True)


def on_card(parts: Sequence[str], seconds: float) -> Iterator[Row]:
    """Yield the rows of parts, each in a process; after so many seconds no part begins."""
    until = time.monotonic() + seconds
    limits: list[Any] = []
    for name in ("limits", *parts):
        left = until - time.monotonic()
        if left <= 0:
            print(f"left out: {name}")
            continue
        limit = min(left, PARTS[name].seconds if name in PARTS else 60)
        for row in rows_within(name, child(name, limits), limit):
            if "limits" in row:
                limits = row["limits"]
                speed = f"{limits[1] / 1e9:.0f} GB/s, {limits[2] / 1e12:.1f} TFLOP/s"
                print(f"{limits[0]}: {speed}")
            else:
                yield {"card": limits[0] if limits else "?", **row}
        if not limits:
            sys.exit("gpu_bars: the card's limits could not be measured.")


def dry(parts: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of parts on the CPU."""
    np.seterr(all="ignore")
    card, ops = measured(dry=True), TritonOps(open_device("cpu"))
    print(f"{card.name}: nothing is measured")
    for name in parts:
        yield from rows_of(name, card, ops)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="small, on the CPU, interpreted")
    parser.add_argument("--output", type=Path, default=RESULTS, help="append rows to this file")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to measure; else all")
    text = "begin no part after so many (default: 840, of a card that is lent for 15 minutes)"
    parser.add_argument("--seconds", type=float, default=840, help=text)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--limits", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_child(args.child, args.limits)
        return
    if not args.dry_run and not torch.cuda.is_available():
        sys.exit("gpu_bars: torch sees no GPU. Use --dry-run to try the command without one.")
    parts = args.parts or [*PARTS]
    rows: list[Row] = []
    for found in dry(parts) if args.dry_run else on_card(parts, args.seconds):
        rows.append(found)
        print(json.dumps(found), flush=True)
        if not args.dry_run:
            with args.output.open("a") as file:
                file.write(json.dumps(found) + "\n")
    print(*verdicts([] if args.dry_run else rows), sep="\n")


if __name__ == "__main__":
    main()
