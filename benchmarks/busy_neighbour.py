"""What a process that takes one core costs: one-row products, as in decoding, on every core.

    python benchmarks/busy_neighbour.py [--threads N] [--repetitions R]

Each repetition times four cases in turn: alone and beside a process that computes without pause,
with the kernel threads free to move and with each bound to a core. A fair share of N cores beside
one neighbour is (N - 0.5) / N where the work is bound by arithmetic; a pool that waits for a thread
which has lost its core gets far less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time

import torch

from quire.ops.native.gemm import PackedLinear
from quire.ops.native.kernels import Pool, native_kernels
from quire.system.hardware import detect

SHAPE = (4096, 1024)
WEIGHTS = 24
"""192 MiB of bfloat16: more than any cache here holds."""
SECONDS = 1.0


def kernel_threads() -> list[int]:
    """Ids of this process's threads that compute, the caller first."""
    workers = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as name:
            if name.read().strip() == "quire-kernels":
                workers.append(int(task))
    return [threading.get_native_id(), *sorted(workers)]


def bind(cpus: list[set[int]]) -> None:
    for thread, allowed in zip(kernel_threads(), cpus, strict=True):
        os.sched_setaffinity(thread, allowed)


def products_a_second(layers: list[PackedLinear], x: torch.Tensor) -> float:
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < SECONDS:
        for layer in layers:
            layer.forward(x)
        count += len(layers)
    return count / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=detect().cores)
    parser.add_argument("--repetitions", type=int, default=7)
    args = parser.parse_args()
    kernels, pool = native_kernels(), Pool(args.threads)
    weight = torch.randn(SHAPE).bfloat16()
    layers = [PackedLinear(kernels, pool, weight, kind="bf16") for _ in range(WEIGHTS)]
    x = torch.randn(1, SHAPE[1]).bfloat16()
    everywhere = os.sched_getaffinity(0)
    places = {
        "free": [everywhere] * args.threads,
        "bound": [{cpu} for cpu in sorted(everywhere)][: args.threads],
    }
    rates: dict[tuple[str, bool], list[float]] = {(p, n): [] for p in places for n in (False, True)}
    for _ in range(args.repetitions):
        for (place, busy), found in rates.items():
            bind(places[place])
            neighbour = None
            if busy:
                neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                os.sched_setaffinity(neighbour.pid, everywhere)
                time.sleep(0.2)
            found.append(products_a_second(layers, x))
            if neighbour is not None:
                neighbour.kill()
                neighbour.wait()
    gigabytes = weight.numel() * 2 / 1e9
    alone = statistics.median(rates["free", False])
    for (place, busy), found in rates.items():
        middle = statistics.median(found)
        print(
            f"{place:<6}{'beside a neighbour' if busy else 'alone':<20}"
            f"{middle * gigabytes:6.1f} GB/s  {middle / alone:5.2f}  "
            f"({min(found) * gigabytes:.1f} to {max(found) * gigabytes:.1f})"
        )


if __name__ == "__main__":
    main()
