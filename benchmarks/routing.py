"""Measure one decision of the router, in microseconds.

    python benchmarks/routing.py [--repetitions 5] [--json FILE.jsonl]

The times are by caches and number of replicas. The prompt has 2,000 tokens. All replicas hold its
system prompt, two of them the conversation. With "random", each replica holds another part of it.
All have requests of their own, so waits differ.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, summarise, write_json
from quire.core.cost import PROFILES
from quire.core.messages import BlockChanges, StepOutputs
from quire.models.cost import roofline
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.routing.router import CacheAwareRouter, Prompt
from quire.system.hardware import detect

BLOCKS, TOKENS, ROUNDS = 125, 2000, 2000
SYSTEM = 60


def microseconds(num_replicas: int, caches: str) -> float:
    """Return the median time of a decision."""
    config = resolve(EngineArgs(model="qwen3-0.6b", load_format="dummy"), detect()).config
    cost = roofline(config, PROFILES["epyc-9654"])
    router = CacheAwareRouter(num_replicas, cost, block_size=16, max_num_seqs=64)
    rng = np.random.default_rng(0)
    hashes = [rng.bytes(32) for _ in range(BLOCKS)]
    for replica in range(num_replicas):
        shared = int(rng.integers(0, BLOCKS + 1)) if caches == "random" else SYSTEM
        held = hashes if replica in (3, 5) else hashes[:shared]
        router.note(replica, StepOutputs([], None, 0.0, blocks=BlockChanges(held, [])))
        for other in range(int(rng.integers(1, 4))):
            router.add(replica, f"{replica}.{other}", Prompt([], int(rng.integers(10, 500))))
    prompt = Prompt(hashes, TOKENS)
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        router.choose(prompt)
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    kinds = [(count, caches) for count in (8, 64) for caches in ("conversation", "random")]
    samples = [
        {f"{caches}_{count}_us": microseconds(count, caches) for count, caches in kinds}
        for _ in range(args.repetitions)
    ]
    row = summarise({}, samples)
    print(json.dumps(row, indent=2))
    if args.json:
        write_json(args.json, row | circumstances("routing", "python benchmarks/routing.py"))


if __name__ == "__main__":
    main()
