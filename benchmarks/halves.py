"""Replicas for prompts and for answers against alike ones: first tokens, and answers meanwhile.

    python benchmarks/halves.py [--model qwen3-0.6b] [--layers 8] [--prompt 4096] [--answers 4]
        [--tokens 100] [--repetitions 1] [--json FILE.jsonl]

Two engines with random weights, of some of the model's layers, run one after the other, each with
one thread per replica: `one` has one replica, `halves` one for prompts and one for answers.

`ttft_s` is the time to the first token of a prompt while nothing else runs. `idle_p99_s` is the
p99 time between two tokens of `--answers` answers, `busy_p99_s` the same while prompts arrive, one
after the other. `ttft_overhead` is halves' time over that of one, less one; `stretch` is busy over
idle. `…_cpu_s` are CPU seconds of all cores for the prompt, and of the last core per token of the
answers: ratios by CPU do not count waits for other processes, on a busy machine. `…_wait_s` are
those waits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, summarise, write_json
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.async_llm import AsyncLLM
from quire.resolve.arguments import EngineArgs

KINDS: dict[str, dict[str, int]] = {
    "one": {"num_threads": 1},
    "halves": {"num_threads": 2, "prefill_replicas": 1, "decode_replicas": 1},
}
TIMES = (
    *("ttft_s", "ttft_cpu_s", "idle_p99_s", "idle_cpu_s", "idle_wait_s"),
    *("busy_p99_s", "busy_cpu_s", "busy_wait_s"),
)
SHORT = 32


class Load:
    """Requests to one engine, with new prompts."""

    def __init__(self, engine: AsyncLLM, seed: int) -> None:
        self._engine = engine
        self.cores = [core.core.client.pid for core in engine._fleet.replicas]  # type: ignore[attr-defined]
        self._draw = Random(seed)

    async def times(self, length: int, count: int) -> list[float]:
        """Return the times of a request's start and of its tokens."""
        prompt = [self._draw.randrange(3, 32_000) for _ in range(length)]
        params = SamplingParams(
            max_tokens=count, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        start, stream = (
            time.perf_counter(),
            self._engine.generate({"prompt_token_ids": prompt}, params),
        )
        return [start, *[time.perf_counter() async for _ in stream]]

    async def answers(self, answers: int, count: int) -> list[float]:
        """Return the p99 time between two tokens of answers that run side by side, and the CPU
        time and the wait for a CPU of the last core per token."""
        before = taken(self.cores[-1:])
        found = await asyncio.gather(*[self.times(SHORT, count) for _ in range(answers)])
        each = (taken(self.cores[-1:]) - before) / count
        gaps = [float(gap) for times in found for gap in np.diff(times[2:])]
        return [float(np.percentile(gaps, 99)), *each]

    async def prompts(self, length: int) -> None:
        """Send prompts, one after the other, until this is cancelled."""
        while True:
            await self.times(length, 1)


async def measure(kind: str, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """Return the times of one engine."""
    engine = await AsyncLLM.start(
        EngineArgs(
            args.model,
            load_format="dummy",
            hf_overrides=json.dumps({"num_hidden_layers": args.layers}),
            max_model_len=args.prompt + SHORT + args.tokens,
            max_num_seqs=2 * args.answers,
            **KINDS[kind],
        )
    )
    try:
        load = Load(engine, seed)
        await load.times(SHORT, 4)  # warm-up
        await load.times(4 * SHORT, 4)
        before = taken(load.cores)
        sent, first, *_ = await load.times(args.prompt, 1)
        cpu = float((taken(load.cores) - before)[0])
        idle = await load.answers(args.answers, args.tokens)
        stream = asyncio.create_task(load.prompts(args.prompt))
        busy = await load.answers(args.answers, args.tokens)
        stream.cancel()
    finally:
        engine.shutdown()
    return dict(zip(TIMES, (first - sent, cpu, *idle, *busy), strict=True))


def taken(processes: list[int]) -> NDArray[np.float64]:
    """Return the seconds that processes have had a CPU, and have waited for one."""
    threads = [path for pid in processes for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    times = [[1e-9 * float(part) for part in path.read_text().split()[:2]] for path in threads]
    return np.array(times, np.float64).sum(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b", help="a preset")
    parser.add_argument("--layers", type=int, default=8, help="of the model's")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of a long prompt")
    parser.add_argument("--answers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=100, help="of an answer")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    samples: list[dict[str, Any]] = []
    for seed in range(args.repetitions):
        found = {kind: asyncio.run(measure(kind, args, seed)) for kind in KINDS}
        samples.append({f"{k}_{name}": s for k, each in found.items() for name, s in each.items()})
    facts = {
        "model": args.model,
        "layers": args.layers,
        "prompt": args.prompt,
        "answers": args.answers,
    }
    row = summarise(tuple(samples[0]), facts, samples)
    for name, time_of in (("", "ttft_s"), ("_by_cpu", "ttft_cpu_s")):
        ratio = row[f"halves_{time_of}"] / row[f"one_{time_of}"]
        row[f"ttft_overhead{name}"] = round(ratio - 1, 4)
    for kind in KINDS:
        for name, time_of in (("", "p99_s"), ("_by_cpu", "cpu_s")):
            ratio = row[f"{kind}_busy_{time_of}"] / row[f"{kind}_idle_{time_of}"]
            row[f"{kind}_stretch{name}"] = round(ratio, 3)
    print(json.dumps(row, indent=2))
    if args.json:
        write_json(args.json, row | circumstances("halves", "python benchmarks/halves.py"))


if __name__ == "__main__":
    main()
