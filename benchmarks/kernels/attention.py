"""Attention of few long sequences: whether threads share their keys, and what the choice costs.

    python benchmarks/kernels/attention.py [--threads N] [--repetitions N]

A line a case: microseconds with every sequence and head on one thread, with their keys cut into
parts for all threads, and as the engine chooses; then the better of the first two over the third,
which is to be at least 0.95. The three take turns, and the least time of each counts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time

import torch

from quire import _native
from quire.ops.memory import empty
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.native.attention import AttentionKernels
from quire.ops.native.kernels import available_isas

BLOCK, HEAD_DIM = 16, 128
LAYERS_BYTES = 96 << 20
"""Layers take turns until the processor's caches hold none of them."""
MODES = {"whole": False, "split": True, "chosen": None}


def least_times(
    pool: _native.Pool, sequences: int, context: int, kv_heads: int, repetitions: int
) -> dict[str, float]:
    """Seconds of one layer's decode, of each mode."""
    each = -(-context // BLOCK)
    shape = (sequences * each, kv_heads, BLOCK, HEAD_DIM)
    few = torch.randn(1 << 16).bfloat16()
    layers = []
    for _ in range(max(2, LAYERS_BYTES // (4 * sequences * each * BLOCK * kv_heads * HEAD_DIM))):
        parts = [empty(shape, torch.bfloat16) for _ in range(2)]
        for part in parts:
            part.view(-1, 1024).copy_(few[:1024])
        layers.append(KVCache(*parts))
    meta = AttentionMetadata(
        query_start_loc=torch.arange(sequences + 1, dtype=torch.int32),
        seq_lens=torch.full((sequences,), context, dtype=torch.int32),
        block_tables=torch.randperm(sequences * each).view(sequences, each).int(),
        slot_mapping=torch.empty(0, dtype=torch.int64),
        num_seqs=sequences,
        block_size=BLOCK,
    )
    q = torch.randn(sequences, 2 * kv_heads, HEAD_DIM).bfloat16()
    ops = AttentionKernels(_native.table(available_isas()[-1]), pool)
    out = torch.empty_like(q)
    least = dict.fromkeys(MODES, float("inf"))
    turns = itertools.cycle(layers)
    for _ in range(repetitions):
        for mode, split in MODES.items():
            start = time.perf_counter()
            ops.paged_attention(
                q, next(turns), meta, AttentionRules(HEAD_DIM**-0.5), out=out, split=split
            )
            least[mode] = min(least[mode], time.perf_counter() - start)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repetitions", type=int, default=200)
    args = parser.parse_args()
    pool = _native.Pool(args.threads)
    print("sequences  kv heads  context  " + "".join(f"{mode:>9}" for mode in MODES) + "    ratio")
    worst = float("inf")
    for sequences, kv_heads, context in itertools.product(
        (1, 2, 3, 5), (1, 2, 3, 8), (512, 1100, 2048, 8192, 32768)
    ):
        times = least_times(pool, sequences, context, kv_heads, args.repetitions)
        ratio = min(times["whole"], times["split"]) / times["chosen"]
        worst = min(worst, ratio)
        microseconds = "".join(f"{1e6 * seconds:9.1f}" for seconds in times.values())
        print(f"{sequences:9}  {kv_heads:8}  {context:7}  {microseconds}  {ratio:7.3f}", flush=True)
    print(f"worst ratio {worst:.3f}")


if __name__ == "__main__":
    main()
