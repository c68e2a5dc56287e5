"""How far the cost model's prediction of a step is from the step, over rows and contexts.

    python benchmarks/cost_error.py [--case MODEL:DTYPE:QUANTIZATION] … [--rounds N] [--json FILE]

A worker computes handmade steps with random weights: chunks of prompts, and decoding. `quire plan`
and `quire explain` predict them from the machine's limits. A machine's rates change by a quarter
within minutes, so each turn measures the limits and all steps; the medians of all turns are
compared. The bar is a mean error of 15 % for prefill and for decode; the rows show each step. It
needs a quiet machine: other programs slow steps and limits differently.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from quire.bench.kernels.limits import Meter
from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, print_grid, write_json
from quire.core.cost import RooflineCost
from quire.explain.fit import rates_of
from quire.explain.host import read_host, use_between
from quire.models.cost import roofline
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.simulate.probe import Entry, StepBench
from quire.system.hardware import detect

CASES = ("opt-125m:bfloat16:", "qwen3-0.6b:bfloat16:int8", "olmoe-1b-7b:bfloat16:int4")
BAR = 0.15
STREAMS, LONG, SHORT, CHUNK = 8, 512, 64, 512
TURNS = 5
"""Of a round."""
STEPS: dict[str, list[Entry]] = {
    **{f"prefill {n} after 0": [(0, 0, n)] for n in (32, 128, CHUNK)},
    "prefill 128 after 384": [(0, LONG - 128, 128)],
    **{
        f"decode {n} at {context}": [(i, context - 1, 1) for i in range(n)]
        for context in (SHORT, LONG)
        for n in (1, 2, 4, STREAMS)
    },
}


def measure(case: str, rounds: int) -> dict[str, Any]:
    """Return a case's steps, each with its median and predicted milliseconds and their error."""
    model, dtype, quantization = case.split(":")
    fields: dict[str, Any] = {"load_format": "dummy", "dtype": dtype, "max_num_seqs": STREAMS}
    fields |= {"max_model_len": LONG + 1, "quantization": quantization or None}
    config = resolve(EngineArgs(model=model, **fields), detect()).config
    meter, seconds = Meter(config.num_threads), []
    meter.turn()
    with StepBench(config, LONG, STREAMS, CHUNK) as bench:
        bench.fill(LONG)
        before = read_host()
        for _ in range(rounds * TURNS):
            meter.turn()
            seconds.append({name: bench.seconds(step) for name, step in STEPS.items()})
        use = use_between(before, read_host())
    limits = meter.limits()
    cost = roofline(config, rates_of(config, limits))
    steps = [
        {"step": name} | _compared(STEPS[name], cost, [turn[name] for turn in seconds])
        for name in STEPS
    ]
    errors = {
        kind: statistics.mean(abs(s["error"]) for s in steps if s["step"].startswith(kind))
        for kind in ("prefill", "decode")
    }
    return {
        "case": case,
        "limit_gb_s": limits.bandwidth_of(config.num_threads) / 1e9,
        "disturbance": use.others if use else 0.0,
        "errors": errors,
        "steps": steps,
    }


def _compared(step: Sequence[Entry], cost: RooflineCost, times: Sequence[float]) -> dict[str, Any]:
    """Return a step's median and its prediction."""
    tokens = sum(count for _, _, count in step)
    context = sum(start + count for _, start, count in step)
    pairs = sum(count * start + count * (count + 1) // 2 for _, start, count in step)
    predicted, seen = cost.seconds(tokens, len(step), context, pairs), statistics.median(times)
    error = math.log(predicted / seen)
    return {
        "ms": round(1e3 * seen, 3),
        "fastest_ms": round(1e3 * min(times), 3),
        "predicted_ms": round(1e3 * predicted, 3),
        # The same for twice as much as for half as much.
        "error": round(math.copysign(math.expm1(abs(error)), error), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--case", action="append", metavar="MODEL:DTYPE:QUANTIZATION")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=jsonl, help="a .jsonl file, to append a row")
    args = parser.parse_args()
    found = []
    for case in args.case or CASES:
        found.append(measure(case, args.rounds))
        print_grid(case, found[-1]["steps"], sys.stdout)
        print("mean error", found[-1]["errors"], flush=True)
    if args.json is not None:
        where = circumstances("cost_error", "python benchmarks/cost_error.py")
        write_json(args.json, {"cases": found} | where)
    return int(any(error > BAR for case in found for error in case["errors"].values()))


if __name__ == "__main__":
    sys.exit(main())
