"""Attention on a GPU against torch's flash attention, with several sizes of tiles.

    python benchmarks/kernels/gpu_attention.py [--seconds N] [--dry-run]

First the checks: a row's bits alone, in a batch, in a chunk and in its prompt, and its distance to
float64. Then a line per case: microseconds of torch's flash attention (keys in one piece, not in
blocks), and of each variant, with the share of flash's speed. Calls are replayed from a graph, over
enough caches that none stays in the card's L2. After N seconds (default: 55) no new variant begins.

`--dry-run` runs everything small on the CPU, in Triton's interpreter, and measures nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.triton import attention
from quire.ops.triton.attention import Shape

REAL = "--dry-run" not in sys.argv
DEVICE = torch.device("cuda" if REAL else "cpu")
DTYPE = torch.bfloat16 if REAL else torch.float16
BLOCK = 16
HEADS, KV_HEADS = (32, 8) if REAL else (4, 2)
L2_BYTES = 200 << 20 if REAL else 0
DECODE = {
    "64 keys, 512, 3": (64, 512, Shape(64, 4, 3)),
    "64 keys, 512, 4": (64, 512, Shape(64, 4, 4)),
    "64 keys, 256, 3": (64, 256, Shape(64, 4, 3)),
    "128 keys, 512, 3": (128, 512, Shape(64, 4, 3)),
}
PREFILL = {
    "64 keys, 512, 3": (64, 512, Shape(128, 8, 3)),
    "128 keys, 512, 2": (128, 512, Shape(128, 8, 2)),
    "64 keys, 1024, 3": (64, 1024, Shape(128, 8, 3)),
    "128 keys, 512, 3": (128, 512, Shape(128, 8, 3)),
}
"""Keys of a tile, of a segment; the tile's rows, warps and stages."""


class Case(NamedTuple):
    """Sequences of one length, of which the last rows are new."""

    sequences: int
    length: int
    new: int
    width: int

    def arrays(self) -> tuple[Tensor, KVCache[Tensor], AttentionMetadata[Tensor]]:
        """Return queries, a cache, and metadata with scattered blocks."""
        each = -(-self.length // BLOCK)
        shape = (self.sequences * each, KV_HEADS, BLOCK, self.width)
        k, v = (torch.randn(shape, device=DEVICE).to(DTYPE) for _ in range(2))
        q = torch.randn(self.sequences * self.new, HEADS, self.width, device=DEVICE).to(DTYPE)
        blocks = torch.randperm(len(k), device=DEVICE).to(torch.int32).view(self.sequences, each)
        return q, KVCache(k, v), metadata(blocks, self.length, self.new)


def metadata(blocks: Tensor, length: int, new: int) -> AttentionMetadata[Tensor]:
    """Return the metadata of sequences of one length."""
    count = len(blocks)
    return AttentionMetadata(
        query_start_loc=np.arange(0, count * new + 1, new, dtype=np.int32),
        seq_lens=np.full(count, length, np.int32),
        block_tables=blocks,
        slot_mapping=torch.zeros(count * new, dtype=torch.int64, device=DEVICE),
        num_seqs=count,
        block_size=BLOCK,
    )


def whole(cached: Tensor, meta: AttentionMetadata[Tensor]) -> Tensor:
    """Return [sequences, kv_heads, tokens, width]."""
    return cached[meta.block_tables.long()].transpose(1, 2).flatten(2, 3).contiguous()


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Return the time of one call: the least of some replays of all of them."""
    for call in calls:
        call()
    if not REAL:
        return 1.0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / len(calls))
    return min(times)


def choose(keys: int, segment: int, shape: Shape) -> None:
    """Let the next launches use these sizes."""
    attention.KEYS, attention.SEGMENT = keys, segment
    if shape.rows > attention.FEW.rows:
        attention.MANY = shape
    else:
        attention.FEW = shape


def run(case: Case, variants: dict[str, tuple[int, int, Shape]], until: float) -> None:
    """Print flash's time of a case, and each variant's."""
    size = 2 * case.sequences * case.length * KV_HEADS * case.width * DTYPE.itemsize
    sets = [case.arrays() for _ in range(max(1, min(8, L2_BYTES // size)))]
    rules = AttentionRules(case.width**-0.5)

    def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=case.new > 1, enable_gqa=True)

    plain: list[Callable[[], object]] = []
    for q, cache, meta in sets:
        rows = q.view(case.sequences, case.new, HEADS, case.width).transpose(1, 2)
        keys = [whole(part, meta) for part in (cache.k, cache.v) if part is not None]
        plain.append(lambda rows=rows, keys=keys: flash(rows, *keys))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if REAL else SDPBackend.MATH):
        base = microseconds(plain)
    flops = 4 * HEADS * case.width * case.sequences * case.new * (case.length - case.new / 2)
    print(f"\n{case}: {size / 2**20:.0f} MiB, {flops / 1e9:.1f} GFLOP")
    print(f"{'flash':20}{base:10.1f} us", flush=True)
    for name, variant in variants.items():
        if time.monotonic() > until:
            break
        choose(*variant)
        calls: list[Callable[[], object]] = [
            lambda q=q, cache=cache, meta=meta: attention.paged_attention(q, cache, meta, rules)
            for q, cache, meta in sets
        ]
        try:
            took = microseconds(calls)
        except Exception as error:  # such as too much shared memory
            print(f"{name:20} {type(error).__name__}: {error}", flush=True)
            continue
        print(
            f"{name:20}{took:10.1f} us {size / took / 1e6:6.2f} TB/s {flops / took / 1e6:6.1f} "
            f"TFLOP/s, flash/this {base / took:5.2f}",
            flush=True,
        )


def check(width: int) -> None:
    """Print how many rows differ alone, in a chunk and as one token; and the error."""
    length, chunk = (1500, 200) if REAL else (40, 9)
    q, cache, meta = Case(4, length, length, width).arrays()
    rules = AttentionRules(width**-0.5)
    everything = attention.paged_attention(q, cache, meta, rules).view(4, length, HEADS, width)
    queries = q.view(4, length, HEADS, width)
    differing: dict[str, Any] = {}
    for name, new in (("prompt alone", length), ("chunk", chunk), ("token", 1)):
        for i in range(2):
            alone = metadata(meta.block_tables[i : i + 1], length, new)
            found = attention.paged_attention(queries[i, -new:].contiguous(), cache, alone, rules)
            differing[name] = int((found != everything[i, -new:]).any(-1).sum())
    batch = metadata(meta.block_tables, length, 1)
    found = attention.paged_attention(queries[:, -1].contiguous(), cache, batch, rules)
    differing["tokens in a batch"] = int((found != everything[:, -1]).any(-1).sum())
    k, v = (
        whole(part, meta).double().repeat_interleave(HEADS // KV_HEADS, 1)
        for part in (cache.k, cache.v)
        if part is not None
    )
    scores = torch.einsum("shd,shtd->sht", queries[:, -1].double(), k[:, :, :length]) * rules.scale
    exact = torch.einsum("sht,shtd->shd", scores.softmax(-1), v[:, :, :length])
    error = (found.double() - exact).abs().max() / exact.abs().max()
    print(f"width {width}: differing heads {differing}, error {float(error):.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--dry-run", action="store_true")
    until = time.monotonic() + parser.parse_args().seconds
    torch.manual_seed(0)
    if not REAL:
        choose(16, 16, Shape(64, 4, 1))
        check(16)
        run(Case(2, 32, 1, 16), {"16 keys": (16, 16, Shape(64, 4, 1))}, until)
        return
    for width in (128, 64):
        check(width)
    for width in (128, 64):
        few = slice(None) if width == 128 else slice(2)
        for sequences, length in ((1, 1024), (1, 8192), (64, 2048), (256, 1024)):
            run(Case(sequences, length, 1, width), dict([*DECODE.items()][few]), until)
        for length in (4096, 16384):
            run(Case(1, length, length, width), dict([*PREFILL.items()][few]), until)


if __name__ == "__main__":
    main()
