"""Replicas for prompts and for answers against alike ones: first tokens, and answers meanwhile.

    python benchmarks/halves.py [--model qwen3-0.6b] [--layers 8] [--prompt 4096] [--answers 4]
        [--tokens 40] [--repetitions 4] [--json FILE.jsonl]

Two engines with random weights, of some of the model's layers, with one thread per replica: `one`
has one replica, `halves` one for prompts and one for answers. Both stay loaded. A repetition
measures the first token of both, and then answers of both; each engine is the first one in turn.

`ttft_s` is the time to the first token of a prompt while nothing else runs, and `second_s` the time
from there to the second one, which another replica computes. `idle_p99_s` is the
p99 time between two tokens of `--answers` answers, `busy_p99_s` the same while prompts arrive, one
after the other. `…_cpu_s` are CPU seconds: of all cores for the prompt, and `ttft_kernel_s` those
of them in the kernel; between two tokens, of the last core and of this process, which is the front
end and might take time from it. On a busy machine compare these: they do not count waits for other
programs. `…_wait_s` are those waits, per token. `ttft_overhead` is halves' time over that of one,
less one; `stretch` is busy over idle. Both are medians of each repetition's ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import time
from pathlib import Path
from random import Random

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
RATIOS = {
    **{
        f"{kind}_stretch{by}": (f"{kind}_busy_{name}", f"{kind}_idle_{name}")
        for kind in KINDS
        for by, name in (("", "p99_s"), ("_by_cpu", "p99_cpu_s"))
    },
    "halves_ttft_over_one": ("halves_ttft_s", "one_ttft_s"),
    "halves_ttft_over_one_by_cpu": ("halves_ttft_cpu_s", "one_ttft_cpu_s"),
}
SHORT = 32
PAUSE = 1.0
"""Between two prompts or more: as in a server that is not full, memory is then backed ahead."""


class Load:
    """Requests to one engine, with new prompts."""

    def __init__(self, engine: AsyncLLM, seed: int) -> None:
        self._engine = engine
        self.cores = [core.client.pid for core in engine._fleet.replicas]  # type: ignore[attr-defined]
        self._last = (~self.cores[-1] << 3) | 2  # Linux' clock of a process
        self._draw = Random(seed)

    async def times(self, length: int, count: int) -> list[tuple[float, float]]:
        """Return the times of a request's start and of its tokens: by the clock, and by the CPU
        time of the last core and of this process."""

        def now() -> tuple[float, float]:
            return time.perf_counter(), time.clock_gettime(self._last) + time.process_time()

        prompt = [self._draw.randrange(3, 32_000) for _ in range(length)]
        params = SamplingParams(
            max_tokens=count, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        start = now()
        stream = self._engine.generate({"prompt_token_ids": prompt}, params)
        return [start, *[now() async for _ in stream]]

    async def first_token(self, length: int) -> dict[str, float]:
        """Return the time of a prompt alone, and the CPU time of all cores."""
        before, kernel = taken(self.cores), in_kernel(self.cores)
        (sent, _), (first, _), (second, _) = await self.times(length, 2)
        await self._rest()
        cpu, kernel = float((taken(self.cores) - before)[0]), in_kernel(self.cores) - kernel
        found = {"ttft_s": first - sent, "second_s": second - first}
        return found | {"ttft_cpu_s": cpu, "ttft_kernel_s": kernel}

    async def _rest(self) -> None:
        """Let an engine return lent blocks, and back memory."""
        await asyncio.sleep(PAUSE)

    async def answers(self, answers: int, count: int) -> dict[str, float]:
        """Return the p99 times between two tokens of answers that run side by side, and the last
        core's wait for a CPU per token."""
        before = taken(self.cores[-1:])
        found = await asyncio.gather(*[self.times(SHORT, count) for _ in range(answers)])
        wait = float((taken(self.cores[-1:]) - before)[1]) / count
        gaps = np.concatenate([np.diff(times[2:], axis=0) for times in found])
        p99, p99_cpu = np.percentile(gaps, 99, axis=0).tolist()
        return {"p99_s": p99, "p99_cpu_s": p99_cpu, "wait_s": wait}

    async def prompts(self, length: int) -> None:
        """Send prompts, one after the other, until this is cancelled."""
        while True:
            await self.times(length, 1)

    async def streams(self, args: argparse.Namespace) -> dict[str, float]:
        """Return the times between tokens without prompts, and beside them."""
        idle = await self.answers(args.answers, args.tokens)
        stream = asyncio.create_task(self.prompts(args.prompt))
        busy = await self.answers(args.answers, args.tokens)
        stream.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stream
        await self._rest()
        found = {f"idle_{name}": seconds for name, seconds in idle.items()}
        return found | {f"busy_{name}": seconds for name, seconds in busy.items()}


async def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    """Return the times of all repetitions."""
    async with contextlib.AsyncExitStack() as stack:
        loads = {}
        for kind, threads in KINDS.items():
            fields = json.dumps({"num_hidden_layers": args.layers})
            engine = await AsyncLLM.start(
                EngineArgs(
                    args.model,
                    load_format="dummy",
                    hf_overrides=fields,
                    max_model_len=args.prompt + SHORT + args.tokens,
                    max_num_seqs=2 * args.answers,
                    **threads,
                )
            )
            stack.callback(engine.shutdown)
            loads[kind] = load = Load(engine, 0)
            for length in (SHORT, 4 * SHORT, args.prompt):  # warm-up
                await load.times(length, 2)
        samples = []
        for number in range(args.repetitions):
            sample: dict[str, float] = {}
            for kind in (order := [*KINDS][:: 1 - 2 * (number % 2)]):
                found = await loads[kind].first_token(args.prompt)
                sample |= {f"{kind}_{name}": seconds for name, seconds in found.items()}
            for kind in order:
                found = await loads[kind].streams(args)
                sample |= {f"{kind}_{name}": seconds for name, seconds in found.items()}
            sample |= {name: sample[a] / sample[b] for name, (a, b) in RATIOS.items()}
            samples.append(sample)
    return samples


def in_kernel(processes: list[int]) -> float:
    """Return the CPU seconds that processes have spent in the kernel."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in processes]
    return sum(int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


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
    parser.add_argument("--tokens", type=int, default=40, help="of an answer")
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    samples = asyncio.run(measure(args))
    facts = {
        "model": args.model,
        "layers": args.layers,
        "prompt": args.prompt,
        "answers": args.answers,
    }
    row = summarise(facts, samples)
    row["ttft_overhead"] = round(row["halves_ttft_over_one"] - 1, 4)
    row["ttft_overhead_by_cpu"] = round(row["halves_ttft_over_one_by_cpu"] - 1, 4)
    print(json.dumps(row, indent=2))
    if args.json:
        write_json(args.json, row | circumstances("halves", "python benchmarks/halves.py"))


if __name__ == "__main__":
    main()
