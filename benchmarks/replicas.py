"""Two replicas of one core each: predicted against measured, and one killed under load.

    python benchmarks/replicas.py [--model qwen3-0.6b] [--layers 8] [--requests 12] [--clients 4]
        [--input-len 256] [--output-len 32] [--predictions 3] [--kills 4] [--seconds 15]
        [--hardware this] [--json FILE.jsonl]

Clients send requests with random weights, one after the other. `quire simulate` predicts the same
load, from the limits of this machine that it measures first. The load runs before and after each
prediction, and is compared with the mean of both. `measured_cpu_s` are the CPU seconds of the
busier replica, without waits for other processes: on a busy machine, compare those. Ratios are
medians of all predictions. `--predictions 0` leaves this out.

Then each client names a replica, and the second one is killed, again and again. `both_p99_s` and
`killed_p99_s` are times between two tokens of the first replica's answers: in the seconds before a
kill, and in those that begin with it. The kill waits until each request there has output; these
requests then go on at the first replica. Answers there are half to one and a half times as long as
four times `--output-len`: clients whose answers are equally long begin their prompts in the same
step, or never in the seconds before a kill. The seconds should hold two answers of each client, so
that each time has some prompts of others. `more_p99_s` is the same while nothing is killed, but the
second half of the clients begins then, at the first replica. `killed_over_more` thus shows what the
loss and the restart cost it besides their load. The ratios are medians of each round's;
`pooled_…` are of the times of all rounds. `…_wait_s` is how long the first replica's threads waited
for a CPU, per second. Each round is printed, and is a row of the file, so nothing is lost if the
program is stopped.

    python benchmarks/replicas.py --predictions 0 --layers 2 --input-len 64 --output-len 16

takes less. All answers must have the tokens that they had before.
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
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from operator import sub
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, summarise, write_json
from quire.core.errors import QuireError
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.client import supervisor
from quire.resolve.arguments import EngineArgs

PATIENCE = 120.0
WARM_UP = 1.0
LONGER = 2, 6
"""Shortest and longest answers beside a kill, as multiples: most requests then have output."""
RATIOS = ("killed", "both"), ("more", "both"), ("killed", "more")
PROGRAM = "replicas", "python benchmarks/replicas.py"
Times = NDArray[np.float64]


class Load:
    """Requests, their tokens, and the times of these."""

    def __init__(self, engine: AsyncLLM, args: argparse.Namespace) -> None:
        self._engine = engine
        self._args = args
        draw = Random(0)
        self._prompts = [
            [draw.randrange(3, 32_000) for _ in range(args.input_len)] for _ in range(args.requests)
        ]
        self.replicas = engine._fleet.replicas
        self.expected: dict[int, list[int]] = {}
        """The longest answer to each prompt so far."""
        self.gaps: list[float] = []
        self.ends = asyncio.Event()
        self.outcomes = Counter[str]()
        self.begun = Counter[int]()
        """Requests that have output, by the replica that they name."""

    async def run(self) -> dict[str, float]:
        """Send all requests; return the seconds that they took, and the busier replica's CPU's."""
        clocks = [(~self.pid(i) << 3) | 2 for i in (0, 1)]  # Linux' clocks of processes
        began = [*map(time.clock_gettime, clocks)]
        left, start = iter(range(self._args.requests)), time.perf_counter()

        async def client() -> None:
            for number in left:
                await self._ask(number, self._args.output_len, None)

        await asyncio.gather(*[client() for _ in range(self._args.clients)])
        seconds = time.perf_counter() - start
        spent = max(map(sub, map(time.clock_gettime, clocks), began))
        return {"measured_s": seconds, "measured_cpu_s": spent}

    async def serve(
        self, replicas: list[int], later: list[int], kill: bool = False
    ) -> tuple[Times, float]:
        """Send requests for some seconds, each client to one of `replicas`.

        Args:
            later: replicas of clients that begin with the seconds.
            kill: kill the second replica at the beginning.

        Returns:
            The first replica's times between two tokens, and its wait for a CPU per second.
        """
        draw, (least, most) = Random(0), (times * self._args.output_len for times in LONGER)

        async def client(replica: int) -> None:
            while not self.ends.is_set():
                await until(lambda: self.replicas[replica].is_ready)
                number, count = draw.randrange(self._args.requests), draw.randint(least, most)
                await self._ask(number, count, replica)

        tasks = [asyncio.create_task(client(replica)) for replica in replicas]
        await asyncio.sleep(WARM_UP)
        await until(lambda: self.begun[1] == replicas.count(1))
        self.gaps.clear()
        if kill:
            os.kill(self.pid(1), signal.SIGKILL)
        tasks += [asyncio.create_task(client(replica)) for replica in later]
        waited, began = waits(self.pid(0)), time.perf_counter()
        await asyncio.sleep(self._args.seconds)
        wait = (waits(self.pid(0)) - waited) / (time.perf_counter() - began)
        gaps = np.array(self.gaps)
        self.ends.set()
        await asyncio.gather(*tasks)
        self.ends.clear()
        await until(lambda: self.replicas[1].is_ready)
        return gaps, wait

    def pid(self, replica: int) -> int:
        """Return the process of a replica's core."""
        pid: int = self.replicas[replica].client.pid  # type: ignore[attr-defined]
        return pid

    async def _ask(self, number: int, count: int, replica: int | None) -> None:
        found, last, failed = list[int](), None, False
        try:
            stream = self._tokens(number, count, replica)
            async with asyncio.timeout(PATIENCE), aclosing(stream):
                async for tokens in stream:
                    now = time.perf_counter()
                    if last is None and replica is not None:
                        self.begun[replica] += 1
                    elif last is not None and replica == 0:
                        self.gaps.append(now - last)
                    found, last = found + tokens, now
                    if self.ends.is_set():
                        break
        except QuireError:
            failed = True
        except TimeoutError:
            self.outcomes["lost"] += 1
            return
        finally:
            if last is not None and replica is not None:
                self.begun[replica] -= 1
        if failed and not found:
            self.outcomes["refused"] += 1
            return
        shorter, longer = sorted((self.expected.get(number, []), found), key=len)
        self.expected[number] = longer
        outcome = "error" if failed else "whole" if len(found) == count else "cut"
        self.outcomes[outcome if shorter == longer[: len(shorter)] else "wrong"] += 1

    async def _tokens(
        self, number: int, count: int, replica: int | None
    ) -> AsyncGenerator[list[int], None]:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=count,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": self._prompts[number]}
        async for output in self._engine.generate(prompt, params, data_parallel_rank=replica):
            yield output.outputs[0].token_ids


def p99(gaps: Times) -> float:
    return float(np.percentile(gaps, 99))


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds, but not forever."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("a replica is not ready, or has no output")
        await asyncio.sleep(2e-3)


def waits(pid: int) -> float:
    """Return the seconds that a process's threads have waited for a CPU."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return 1e-9 * sum(int(path.read_text().split()[1]) for path in files)


def flags(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "load_format": "dummy",
        "hf_overrides": json.dumps({"num_hidden_layers": args.layers}),
        "max_model_len": args.input_len + LONGER[1] * args.output_len + 16,
        "num_threads": 2,
        "data_parallel_size": 2,
        "kv_cache_memory_bytes": 2**28,
        "enable_prefix_caching": False,
    }


def predicted(args: argparse.Namespace) -> float:
    """Return the seconds that `quire simulate` says of the load on this machine."""
    given = {**flags(args), "num_prompts": args.requests, "num_clients": args.clients}
    given |= {"input_len": args.input_len, "output_len": args.output_len, "lengths": "fixed"}
    del given["enable_prefix_caching"]
    words = [w for n, value in given.items() for w in (f"--{n.replace('_', '-')}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = ["simulate", "--model", args.model, *words, "--json", str(out)]
        command += ["--no-enable-prefix-caching", "--hardware", args.hardware]
        subprocess.run([sys.executable, "-m", "quire", *command], check=True, stdout=2)
        return float(json.loads(out.read_text())["duration_s"])


async def compared(load: Load, args: argparse.Namespace) -> list[dict[str, float]]:
    """Return each prediction, the load's seconds around it, and the ratios of both."""
    rounds = []
    before = await load.run() if args.predictions else {}
    while len(rounds) < args.predictions:
        seconds = await asyncio.to_thread(predicted, args)
        after = await load.run()
        found = {"predicted_s": seconds}
        for name in after:
            found[name] = (before[name] + after[name]) / 2
            found[f"predicted_over_{name.removesuffix('_s')}"] = seconds / found[name]
        rounds.append(found)
        print(json.dumps({"prediction": len(rounds)} | found), flush=True)
        if args.json:
            write_json(args.json, {"prediction": len(rounds)} | found | circumstances(*PROGRAM))
        before = after
    return rounds


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the times of two replicas, and what became of requests when one was killed."""
    supervisor.HEALTHY_SECONDS = 0.0  # a core that was killed is not to blame
    engine = await AsyncLLM.start(EngineArgs(args.model, **flags(args)))
    try:
        load = Load(engine, args)
        await load.run()  # warm-up, and the answers
        predictions = await compared(load, args)
        row: dict[str, Any] = {}
        if predictions:
            row["load"] = summarise({}, predictions)
        load.outcomes.clear()
        rounds: list[dict[str, float]] = []
        pools: dict[str, list[Times]] = {"both": [], "killed": [], "more": []}
        while len(rounds) < args.kills:
            found: dict[str, float] = {}
            for kind, named, later, kill in (
                ("both", [0, 1], [], False),
                ("killed", [0, 1], [], True),
                ("more", [0], [0], False),
            ):
                each = args.clients // 2
                gaps, wait = await load.serve(named * each, later * each, kill)
                pools[kind].append(gaps)
                found |= {f"{kind}_p99_s": p99(gaps), f"{kind}_wait_s": wait}
            for over, under in RATIOS:
                found[f"{over}_over_{under}"] = found[f"{over}_p99_s"] / found[f"{under}_p99_s"]
            rounds.append(found)
            print(json.dumps({"round": len(rounds)} | found), flush=True)
            if args.json:
                write_json(args.json, {"round": len(rounds)} | found | circumstances(*PROGRAM))
        pooled = {kind: p99(np.concatenate(times)) for kind, times in pools.items() if times}
        row |= {f"pooled_{kind}_p99_s": seconds for kind, seconds in pooled.items()}
        row["moved"] = engine.stats.retried
    finally:
        engine.shutdown()
    kinds = ("whole", "cut", "error", "refused", "lost", "wrong")
    facts = row | {kind: load.outcomes[kind] for kind in kinds}
    rounds = rounds or [{}]
    return summarise(facts, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-0.6b", help="a preset")
    parser.add_argument("--layers", type=int, default=8, help="of the model's")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--input-len", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0, help="with and without a kill")
    parser.add_argument("--hardware", default="this", help="profile that the prediction is from")
    parser.add_argument("--predictions", type=int, default=3, help="of the load")
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    row = asyncio.run(measure(args))
    print(json.dumps(row, indent=2))
    if args.json:
        write_json(args.json, row | circumstances(*PROGRAM))
    return int(row["lost"] + row["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
