"""A step of the sampler, logits to tokens: native against numpy, interleaved.

    python benchmarks/kernels/sampling.py [--isa NAME] [--threads N] [--rows N] [--rounds N]

One line a set of sampling parameters, which all rows share, at Qwen3's vocabulary of 151,936.
Logits are normal with a deviation of 3: flatter than most models', so that top_p keeps some
thousands of tokens. Times are of `Sampler.sample`, Python included, in milliseconds; medians, and
for native the least as well, which tells how much a busy neighbour disturbed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

from quire.core.sampling_params import SamplingParams
from quire.ops.interface import Ops
from quire.ops.providers import load_ops
from quire.sampling.sampler import Sampler, SamplingBatch
from quire.sampling.state import SamplingState

VOCAB, PROMPT, OUTPUT = 151_936, 256, 128

PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.2}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, penalties": {"temperature": 0.0, **PENALTIES},
    "temperature": {"temperature": 0.8},
    "top_k=50": {"temperature": 0.8, "top_k": 50},
    "top_p=0.95": {"temperature": 0.8, "top_p": 0.95},
    "min_p=0.05": {"temperature": 0.8, "min_p": 0.05},
    "all, penalties": {
        "temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.01, **PENALTIES
    },
    "greedy, 5 logprobs": {"temperature": 0.0, "logprobs": 5},
}  # fmt: skip


def states(rows: int, params: dict[str, Any]) -> list[SamplingState]:
    """Sequences in the middle of their output."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(VOCAB, size=(rows, PROMPT + OUTPUT), dtype=np.int32)
    return [
        SamplingState(SamplingParams(seed=i, **params), tokens[i], PROMPT + OUTPUT, PROMPT)
        for i in range(rows)
    ]


def milliseconds(ops: Ops, logits: torch.Tensor, batch: SamplingBatch) -> float:
    start = time.perf_counter()
    Sampler(ops).sample(logits, batch)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    native, numpy = load_ops("cpu", options.isa, options.threads), load_ops("reference")
    logits = torch.randn(options.rows, VOCAB) * 3
    print(f"{native.note}; {options.threads} threads, {options.rows} rows")
    print(f"{'':20}{'native ms':>12}{'least':>8}{'numpy ms':>12}{'ratio':>8}")
    for name, params in CASES.items():
        batch = SamplingBatch(states(options.rows, params))
        times: list[list[float]] = [[], []]
        for _ in range(options.rounds):
            for ops, into in zip((native, numpy), times, strict=True):
                milliseconds(ops, logits, batch)  # the other's traces leave the caches
                into.append(milliseconds(ops, logits, batch))
        fast, slow = (statistics.median(t) for t in times)
        print(f"{name:20}{fast:12.2f}{min(times[0]):8.2f}{slow:12.2f}{slow / fast:8.1f}")


if __name__ == "__main__":
    main()
