"""What profiling costs a step: the op profile, and a trace of torch's profiler.

    python benchmarks/profiler_cost.py [--model NAME] [--num-seqs N] [--repetitions R]

In one engine the same generation runs in turn without a profiler, while operations are counted, and
while a trace is recorded, in an order that changes from round to round, each after a short run that
is not timed. A cost is the lower quartile of the rounds over that without, less one: what else runs
on a machine can only add. Beginning and ending a recording are given apart; of making the trace's
file a step waits for no more than that. Prints one row of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable

from quire import LLM, SamplingParams
from quire.checkpoint.presets import preset_config

STEPS = 48
WARM_STEPS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-seqs", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=15)
    args = parser.parse_args()
    dummy = preset_config(args.model) is not None
    with tempfile.TemporaryDirectory() as folder:
        profiler = {"profiler": "torch", "torch_profiler_dir": folder}
        with LLM(
            args.model,
            load_format="dummy" if dummy else "auto",
            dtype=args.dtype,
            enable_prefix_caching=False,
            profiler_config=profiler,
        ) as llm:
            print(json.dumps(measure(llm, args)))


def measure(llm: LLM, args: argparse.Namespace) -> dict[str, object]:
    params = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)
    prompts = [{"prompt_token_ids": [7] * 16}] * args.num_seqs

    def run() -> float:
        llm.generate(prompts, params.replace(max_tokens=WARM_STEPS), use_tqdm=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    def operations() -> float:
        llm.call("start_op_profile", 10**6)
        seconds = run()
        llm.call("stop_op_profile")
        return seconds

    edges: list[float] = []

    def trace() -> float:
        llm.start_profile()
        begin = time.perf_counter()
        llm.generate([prompts[0]], params.replace(max_tokens=1), use_tqdm=False)
        begun = time.perf_counter()
        seconds = run()
        end = time.perf_counter()
        llm.call("stop_profile")
        edges.append(time.perf_counter() - end + begun - begin)
        llm.stop_profile()  # nothing is written beside the next round
        return seconds

    modes: list[Callable[[], float]] = [run, operations, trace]
    samples: dict[Callable[[], float], list[float]] = {mode: [] for mode in modes}
    for number in range(args.repetitions):
        for mode in modes[number % 3 :] + modes[: number % 3]:
            samples[mode].append(mode())
    off, ops, traced = (statistics.quantiles(samples[mode], n=4)[0] for mode in modes)
    return {
        "bench": "profiler_cost",
        "model": args.model,
        "num_seqs": args.num_seqs,
        "step_ms": off / STEPS * 1e3,
        "ops_cost": ops / off - 1,
        "trace_cost": traced / off - 1,
        "trace_edges_ms": statistics.median(edges) * 1e3,
        "repetitions": args.repetitions,
    }


if __name__ == "__main__":
    main()
