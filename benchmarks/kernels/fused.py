"""The small operations: native against plain torch, interleaved.

    python benchmarks/kernels/fused.py [--isa NAME] [--threads N] [--dtype bfloat16] [--rounds N]

One line an operation and number of rows, at the sizes of Qwen3-0.6B: hidden 1024, intermediate
3072, 16 + 2 · 8 heads of 128, vocabulary 151,936. Inputs rotate through copies of together up to
32 MB, so that the first caches do not flatter. GB/s counts each tensor read or written once. Times
include the call from Python; they are lower quartiles, which a busy neighbour disturbs least.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count

import torch
from torch import Tensor

from quire import _native
from quire.ops import reference
from quire.ops.metadata import KVCache
from quire.ops.native import NativeKernels
from quire.ops.native_fused import FusedKernels

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 1024, 3072, 16, 8, 128, 151_936
ROTATED_BYTES = 32 << 20

Call = Callable[[int], object]


def cases(
    kernels: FusedKernels, rows: int, dtype: torch.dtype
) -> Iterator[tuple[str, int, Call, Call]]:
    """(name, bytes moved, native call, torch call) of each operation; a call takes its number."""
    unit = dtype.itemsize

    def inputs(*shape: int) -> list[Tensor]:
        copies = max(1, min(64, ROTATED_BYTES // (torch.Size(shape).numel() * unit)))
        return [torch.randn(*shape).to(dtype) for _ in range(copies)]

    def pair(name: str, moved: int, xs: list[Tensor], *rest: object) -> tuple[str, int, Call, Call]:
        native, plain = getattr(kernels, name), getattr(reference, name)
        n = len(xs)
        return name, moved, lambda i: native(xs[i % n], *rest), lambda i: plain(xs[i % n], *rest)

    hidden = rows * HIDDEN * unit
    x, residual = inputs(rows, HIDDEN), torch.randn(rows, HIDDEN).to(dtype)
    weight, bias = torch.randn(2, HIDDEN).to(dtype)
    yield pair("rms_norm", 2 * hidden, x, weight, 1e-6)
    yield pair("add_rms_norm", 4 * hidden, x, residual, weight, 1e-6)
    yield pair("layer_norm", 2 * hidden, x, weight, bias, 1e-6)
    yield pair("add_layer_norm", 4 * hidden, x, residual, weight, bias, 1e-6)
    wide = rows * INTERMEDIATE * unit
    yield pair("silu_mul", 3 * wide, inputs(rows, 2 * INTERMEDIATE))
    for name in ("gelu", "gelu_tanh", "relu"):
        yield pair(name, 2 * wide, inputs(rows, INTERMEDIATE))
    ids = torch.randint(0, 20_000, (rows,))
    table = torch.randn(20_000, HIDDEN).to(dtype)
    yield (
        "embedding",
        2 * hidden,
        lambda i: kernels.embedding(ids, table),
        lambda i: reference.embedding(ids, table),
    )
    yield rope_case(kernels, inputs(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM))
    logits = [torch.randn(rows, VOCAB) for _ in range(1 if rows > 1 else 20)]
    yield (
        "argmax",
        rows * VOCAB * 4,
        lambda i: kernels.argmax(logits[i % len(logits)]),
        lambda i: logits[i % len(logits)].max(dim=-1),
    )


def rope_case(kernels: FusedKernels, qkvs: list[Tensor]) -> tuple[str, int, Call, Call]:
    """Norms of q and k, rotation and KV write: one native call against the reference's five."""
    rows, dtype = qkvs[0].shape[0], qkvs[0].dtype
    size = (rows // 16 + 1, KV_HEADS, 16, HEAD_DIM)
    cache = KVCache(torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype))
    positions = torch.arange(rows)
    cos_sin, norm = torch.randn(rows, HEAD_DIM), torch.randn(HEAD_DIM).to(dtype)
    widths = [n * HEAD_DIM for n in (HEADS, KV_HEADS, KV_HEADS)]

    def native(i: int) -> object:
        return kernels.rope_kv_write(
            qkvs[i % len(qkvs)], positions, cos_sin, norm, norm, 1e-6, cache, positions,
            HEADS, KV_HEADS, HEAD_DIM,
        )  # fmt: skip

    def plain(i: int) -> object:
        split = qkvs[i % len(qkvs)].split(widths, dim=-1)
        q, k, v = (t.unflatten(-1, (-1, HEAD_DIM)) for t in split)
        q, k = reference.rms_norm(q, norm, 1e-6), reference.rms_norm(k, norm, 1e-6)
        q, k = reference.rotary(q, k, positions, cos_sin)
        reference.write_kv(k, v, cache, positions)
        return q

    return "rope_kv_write", 2 * qkvs[0].nbytes, native, plain


def seconds(call: Call, numbers: Iterator[int], repeats: int) -> float:
    """Of one call, averaged over `repeats`."""
    start = time.perf_counter()
    for _ in range(repeats):
        call(next(numbers))
    return (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kernels = FusedKernels(NativeKernels(options.isa), _native.Pool(options.threads))
    print(f"{kernels.isa}, {options.dtype}, {options.threads} threads")
    print(f"{'op':16}{'rows':>5}{'native µs':>12}{'GB/s':>8}{'torch µs':>12}{'ratio':>8}")
    for rows in (1, 64, 512):
        for name, moved, *calls in cases(kernels, rows, getattr(torch, options.dtype)):
            numbers = count()
            repeats = [max(1, int(2e-3 / seconds(call, numbers, 3))) for call in calls]
            times: list[list[float]] = [[], []]
            for _ in range(options.rounds):
                for call, repeat, into in zip(calls, repeats, times, strict=True):
                    into.append(seconds(call, numbers, repeat))
            native, plain = (statistics.quantiles(t, n=4)[0] for t in times)
            print(
                f"{name:16}{rows:5}{native * 1e6:12.1f}{moved / native / 1e9:8.1f}"
                f"{plain * 1e6:12.1f}{plain / native:8.1f}"
            )


if __name__ == "__main__":
    main()
