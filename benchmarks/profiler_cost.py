"""What profiling costs a step: the op profile, and a trace of torch's profiler.

    python benchmarks/profiler_cost.py [--model NAME] [--num-seqs N] [--rounds R]

One engine decodes all the while. In turn a few of its steps are computed without a profiler, while
operations are counted, and while a trace is recorded, in an order that changes from round to round;
the first steps after each change are not timed. A cost is a quantile of these steps over that of
those without, less one: what else runs on a machine moves both alike. Prints one row of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time

from quire.checkpoint.presets import preset_config
from quire.core.config import ProfilerConfig
from quire.core.messages import AddRequest
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.uniproc import UniprocExecutor
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect

MODES: dict[str, tuple[str, str] | None] = {
    "off": None,
    "ops": ("start_op_profile", "stop_op_profile"),
    "trace": ("start_profile", "stop_profile"),
}
STEPS, SETTLE = 12, 4
"""Of a turn: steps that are timed, and those before them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="opt-125m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--num-seqs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        engine_args = EngineArgs(
            model=args.model,
            load_format="dummy" if preset_config(args.model) is not None else "auto",
            dtype=args.dtype,
            profiler_config=ProfilerConfig(profiler="torch", torch_profiler_dir=folder),
        )
        config = resolve(engine_args, detect()).config
        core = EngineCore(config, UniprocExecutor(config))
        length = args.rounds * len(MODES) * (STEPS + SETTLE) + SETTLE
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        for number in range(args.num_seqs):
            prompt = pack_tokens([7] * 16)
            core.add(AddRequest(str(number), prompt, params, arrival_time=time.monotonic()))
        samples = measure(core, args.rounds)
        core.shutdown()
    quartiles = {mode: statistics.quantiles(values, n=4) for mode, values in samples.items()}
    row: dict[str, object] = {"bench": "profiler_cost", "model": args.model}
    row |= {"num_seqs": args.num_seqs, "step_ms": quartiles["off"][1] * 1e3}
    for mode in ("ops", "trace"):
        for name, index in (("", 1), ("_lower_quartile", 0)):
            cost = quartiles[mode][index] / quartiles["off"][index] - 1
            row[f"{mode}_cost{name}"] = cost
    print(json.dumps(row))


def measure(core: EngineCore, rounds: int) -> dict[str, list[float]]:
    """Seconds of the steps by mode."""
    samples: dict[str, list[float]] = {mode: [] for mode in MODES}
    names = list(MODES)
    for number in range(rounds):
        for mode in names[number % 3 :] + names[: number % 3]:
            calls = MODES[mode]
            if calls:
                core.call(calls[0], [])
            for step in range(SETTLE + STEPS):
                begin = time.perf_counter()
                core.step()
                if step >= SETTLE:
                    samples[mode].append(time.perf_counter() - begin)
            if calls:
                core.call(calls[1], [])
    return samples


if __name__ == "__main__":
    main()
