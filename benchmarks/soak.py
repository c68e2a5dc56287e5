"""What a server costs that does nothing, and whether it grows with the requests it serves.

    python benchmarks/soak.py [--requests 10000] [the engine's flags]

Starts `quire serve`, takes the CPU time of its processes over ten idle seconds, then sends many
short requests and follows each process's memory. The slope is fitted to the second half of them:
caches fill in the first. Needs psutil.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable

import numpy as np
import psutil

from quire.bench.serving.http_client import HTTPClient, events
from quire.bench.serving.server_process import running_server
from quire.bench.serving.workload import text_prompts
from quire.resolve.arguments import EngineArgs

SETTLE_SECONDS = 3.0
SAMPLES = 200


def main() -> int:
    args = _arguments()
    with running_server(args) as url:
        api = psutil.Process().children()[-1]
        processes = {"api": api, "core": _core(api)}
        asyncio.run(_send(url, args.clients, args.clients, lambda: None))
        time.sleep(SETTLE_SECONDS)
        idle = _cpu_share(processes, args.idle_seconds)
        counts: list[int] = []
        memory: dict[str, list[int]] = {name: [] for name in processes}
        done = itertools.count(1)
        every = max(1, args.requests // SAMPLES)

        def finished() -> None:
            count = next(done)
            if count % every == 0:
                counts.append(count)
                for name, process in processes.items():
                    memory[name].append(process.memory_info().rss)

        start = time.monotonic()
        asyncio.run(_send(url, args.requests, args.clients, finished))
        seconds = time.monotonic() - start
        time.sleep(SETTLE_SECONDS)
        idle_after = _cpu_share(processes, args.idle_seconds)
    half = len(counts) // 2
    result = {
        "requests": args.requests,
        "requests_s": args.requests / seconds,
        "idle_cpu_share": idle,
        "idle_cpu_share_after": idle_after,
        "rss_bytes": {name: values[-1] for name, values in memory.items()},
        "rss_bytes_a_request": {
            name: float(np.polyfit(counts[half:], values[half:], 1)[0])
            for name, values in memory.items()
        },
    }
    print(json.dumps(result, indent=2))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument("--clients", type=int, default=16, metavar="N")
    parser.add_argument("--idle-seconds", type=float, default=10.0, metavar="S")
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="S")
    # Few blocks: pages of a large KV cache that are used for the first time are no leak.
    EngineArgs.add_cli_args(parser, defaults={"num_gpu_blocks_override": 512})
    return parser.parse_args()


def _core(api: psutil.Process) -> psutil.Process:
    """The core among the API process's children: the one that holds the model."""
    return max(api.children(), key=lambda child: child.memory_info().rss)


def _cpu_share(processes: dict[str, psutil.Process], seconds: float) -> dict[str, float]:
    """CPU seconds a second; 1.0 is a core."""

    def spent(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    before = {name: spent(process) for name, process in processes.items()}
    time.sleep(seconds)
    return {name: (spent(process) - before[name]) / seconds for name, process in processes.items()}


async def _send(url: str, count: int, clients: int, finished: Callable[[], None]) -> None:
    """`count` short requests from `clients` connections, every other one streamed."""
    prompts = iter(enumerate(text_prompts(count, 12, [0])))

    async def work() -> None:
        client = HTTPClient(url)
        for index, prompt in prompts:
            body = {"prompt": prompt, "max_tokens": 1 + index % 8, "stream": index % 2 == 0}
            pieces = await client.exchange("POST", "/v1/completions", body)
            if body["stream"]:
                *_, (_, last) = events(pieces)
                assert last == "[DONE]", last
            finished()
        await client.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(work())


if __name__ == "__main__":
    sys.exit(main())
