"""Two replicas of one core each: predicted against measured, and one killed under load.

    python benchmarks/replicas.py [--model qwen3-0.6b] [--layers 8] [--requests 12] [--clients 4]
        [--input-len 256] [--output-len 32] [--hardware this] [--json FILE.jsonl]

Clients send requests with random weights, one after the other. `quire simulate` predicts the same
load, from the limits of this machine that it measures first. `measured_cpu_s` are the CPU seconds
of the busier replica, without waits for other processes: on a busy machine, compare those.

Then each client names a replica, and the second replica is killed: `idle_p99_s` and `killed_p99_s`
are times between two tokens of the first replica's answers before and after. All answers must have
the tokens that they had before: all of them, or for one that had begun on the lost replica, the
first ones and then an error. A request that names the lost replica is refused, and sent again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from operator import sub
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json
from quire.core.errors import QuireError
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.async_llm import AsyncLLM
from quire.resolve.arguments import EngineArgs

PATIENCE = 120.0


class Load:
    """Requests, their tokens, and the times of these."""

    def __init__(self, engine: AsyncLLM, args: argparse.Namespace) -> None:
        self._engine = engine
        self._args = args
        draw = Random(0)
        self._prompts = [
            [draw.randrange(3, 32_000) for _ in range(args.input_len)] for _ in range(args.requests)
        ]
        self.expected: dict[int, list[int]] = {}
        self.gaps: list[float] = []
        self.outcomes = Counter[str]()

    async def run(self, *, named: bool = False) -> float:
        """Send all requests; return the seconds that they took."""
        left, start = iter(range(self._args.requests)), time.perf_counter()
        clients = [self._client(left, i % 2 if named else None) for i in range(self._args.clients)]
        await asyncio.gather(*clients)
        return time.perf_counter() - start

    async def _client(self, left: Any, replica: int | None) -> None:
        waiting: list[int] = []  # the replica that they name is lost, and not ready again
        while (number := waiting.pop() if waiting else next(left, None)) is not None:
            found, times, failed = list[int](), list[float](), False
            try:
                async with asyncio.timeout(PATIENCE):
                    async for tokens in self._tokens(number, replica):
                        found += tokens
                        times.append(time.perf_counter())
            except QuireError:
                failed = True
                if not found:
                    self.outcomes["refused"] += 1
                    waiting.append(number)
                    await asyncio.sleep(0.1)
                    continue
            except TimeoutError:
                self.outcomes["lost"] += 1
                continue
            if replica == 0:
                self.gaps += np.diff(times).tolist()
            expected = self.expected.setdefault(number, found)
            right = found == (expected[: len(found)] if failed else expected)
            self.outcomes[("error" if failed else "whole") if right else "wrong"] += 1

    async def _tokens(self, number: int, replica: int | None) -> Any:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=self._args.output_len,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": self._prompts[number]}
        async for output in self._engine.generate(prompt, params, data_parallel_rank=replica):
            yield output.outputs[0].token_ids


def flags(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "load_format": "dummy",
        "hf_overrides": json.dumps({"num_hidden_layers": args.layers}),
        "max_model_len": args.input_len + args.output_len + 16,
        "num_threads": 2,
        "data_parallel_size": 2,
        "enable_prefix_caching": False,
    }


def predicted(args: argparse.Namespace) -> dict[str, Any]:
    """Return what `quire simulate` says of the load on this machine."""
    given = {**flags(args), "num_prompts": args.requests, "num_clients": args.clients}
    given |= {"input_len": args.input_len, "output_len": args.output_len, "lengths": "fixed"}
    del given["enable_prefix_caching"]
    words = [w for n, value in given.items() for w in (f"--{n.replace('_', '-')}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = ["simulate", "--model", args.model, *words, "--json", str(out)]
        command += ["--no-enable-prefix-caching", "--hardware", args.hardware]
        subprocess.run([sys.executable, "-m", "quire", *command], check=True, stdout=2)
        found: dict[str, Any] = json.loads(out.read_text())
    return found


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the times of two replicas, and what became of requests when one was killed."""
    engine = await AsyncLLM.start(EngineArgs(args.model, **flags(args)))
    try:
        load = Load(engine, args)
        await load.run()  # warm-up, and the answers
        pids = [each.client.pid for each in engine._fleet.replicas]  # type: ignore[attr-defined]
        clocks = [(~pid << 3) | 2 for pid in pids]  # Linux' clocks of processes
        began = [*map(time.clock_gettime, clocks)]
        seconds = await load.run()
        cpu = max(map(sub, map(time.clock_gettime, clocks), began))
        await load.run(named=True)
        before, load.gaps = load.gaps, []
        killing = asyncio.get_running_loop().call_later(
            seconds / 3,
            lambda: os.kill(pids[1], signal.SIGKILL),
        )
        load.outcomes.clear()
        await load.run(named=True)
        killing.cancel()
    finally:
        engine.shutdown()
    p99 = [float(np.percentile(gaps, 99)) for gaps in (before, load.gaps)]
    kinds = {kind: load.outcomes[kind] for kind in ("whole", "error", "refused", "lost", "wrong")}
    times = {"measured_s": seconds, "measured_cpu_s": cpu}
    return {**times, "idle_p99_s": p99[0], "killed_p99_s": p99[1], **kinds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-0.6b", help="a preset")
    parser.add_argument("--layers", type=int, default=8, help="of the model's")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--hardware", default="this", help="profile that the prediction is from")
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    row = {"predicted_s": predicted(args)["duration_s"]} | asyncio.run(measure(args))
    for name in ("measured", "measured_cpu"):
        row[f"predicted_over_{name}"] = round(row["predicted_s"] / row[f"{name}_s"], 3)
    row["killed_over_idle"] = round(row["killed_p99_s"] / row["idle_p99_s"], 3)
    print(json.dumps(row, indent=2))
    if args.json:
        write_json(args.json, row | circumstances("replicas", "python benchmarks/replicas.py"))
    return int(row["lost"] + row["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
