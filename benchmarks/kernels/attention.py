"""Paged attention: decode against the memory's read speed, prefill against torch's attention.

    python benchmarks/kernels/attention.py [--isa amx] [--threads 2] [--seconds 0.5] [--only decode]

Shapes are Qwen3-0.6B's (16 heads, 8 kv heads of 128, bfloat16, blocks of 16). Calls rotate over
enough layers that no cache holds them, and alternate with what they are compared to (a read of
the same bytes; `scaled_dot_product_attention` on the same tokens), so that a busy machine slows
both. Prints medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from quire import _native
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.native_attention import paged_attention

HEADS, KV_HEADS, DIM, BLOCK = 16, 8, 128, 16
CACHE_BYTES = 3 << 29


def batch(
    count: int, context: int, query: int, layers_of: int
) -> tuple[list[KVCache], AttentionMetadata]:
    """Layers of a cache and the metadata of `count` sequences with scattered blocks."""
    blocks = -(-context // BLOCK)
    shape = (count * blocks, KV_HEADS, BLOCK, DIM)
    nbytes = 4 * count * blocks * KV_HEADS * BLOCK * DIM
    layers = max(1, layers_of // nbytes)
    caches = [KVCache(*(torch.randn(shape).bfloat16() for _ in range(2)))]
    caches += [KVCache(*(t.clone() for t in caches[0])) for _ in range(layers - 1)]
    tables = torch.randperm(count * blocks).view(count, blocks).int()
    meta = AttentionMetadata(
        query_start_loc=torch.arange(0, (count + 1) * query, query, dtype=torch.int32),
        seq_lens=torch.full((count,), context, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.empty(0, dtype=torch.int64),
        num_seqs=count,
        max_query_len=query,
        max_seq_len=context,
        block_size=BLOCK,
    )
    return caches, meta


def alternate(seconds: float, *calls: Callable[[int], object]) -> list[float]:
    """Median seconds of each call; each is given how often it has been called."""
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    turn = 0
    while time.perf_counter() < end or turn < 8:
        for call, spent in zip(calls, times, strict=True):
            start = time.perf_counter()
            call(turn)
            spent.append(time.perf_counter() - start)
        turn += 1
    return [statistics.median(spent[2:]) for spent in times]


def decode(
    kernels: _native.Kernels, pool: _native.Pool, count: int, context: int, seconds: float
) -> None:
    caches, meta = batch(count, context, 1, CACHE_BYTES)
    q = torch.randn(count, HEADS, DIM).bfloat16()
    nbytes = sum(t.nbytes for t in caches[0])
    words = [t.view(-1).view(torch.float32) for cache in caches for t in cache]
    attention, read = alternate(
        seconds,
        lambda i: paged_attention(kernels, pool, q, caches[i % len(caches)], meta, DIM**-0.5),
        # Half a rotation away, so that neither reads what the other has just brought in.
        lambda i: [
            words[(2 * i + len(words) // 2 // 2 * 2 + j) % len(words)].sum() for j in (0, 1)
        ],
    )
    print(
        f"decode   {kernels.isa:9} B={count:<3} ctx={context:<5} {attention * 1e6:9.0f} us "
        f"{nbytes / attention / 1e9:6.1f} GB/s; plain read {nbytes / read / 1e9:6.1f} GB/s "
        f"({read / attention:.0%})",
        flush=True,
    )


def prefill(kernels: _native.Kernels, pool: _native.Pool, context: int, seconds: float) -> None:
    caches, meta = batch(1, context, context, 1 << 20)
    q = torch.randn(context, HEADS, DIM).bfloat16()
    dense_q = q.transpose(0, 1)[None].contiguous()
    k, v = (torch.randn(1, HEADS, context, DIM).bfloat16() for _ in range(2))
    attention, sdpa = alternate(
        seconds,
        lambda _: paged_attention(kernels, pool, q, caches[0], meta, DIM**-0.5),
        lambda _: F.scaled_dot_product_attention(dense_q, k, v, is_causal=True),
    )
    flops = 4 * HEADS * DIM * context * (context + 1) / 2
    print(
        f"prefill  {kernels.isa:9} T={context:<5} {attention * 1e6:9.0f} us "
        f"{flops / attention / 1e9:6.0f} GFLOP/s; torch SDPA {flops / sdpa / 1e9:6.0f} "
        f"({sdpa / attention:.2f}x)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--isa", default=_native.detect()[-1])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="a row")
    parser.add_argument("--only", choices=["decode", "prefill"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kernels, pool = _native.table(args.isa), _native.Pool(args.threads)
    if args.only != "prefill":
        for count, context in ((1, 128), (1, 2048), (16, 256), (16, 2048), (64, 256)):
            decode(kernels, pool, count, context, args.seconds)
    if args.only != "decode":
        for context in (128, 512, 2048):
            prefill(kernels, pool, context, args.seconds)


if __name__ == "__main__":
    main()
