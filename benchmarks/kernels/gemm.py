"""Linear layers on the native kernels against memory bandwidth and torch.

    python benchmarks/kernels/gemm.py [--threads 2] [--rows 1 64 512] [--kinds bf16 s8] [--isa amx]

Shapes are those of qwen3-0.6b, [N, K]. Each product reads another copy of the weight, so that no
cache holds it. Products, a plain read of memory and torch's F.linear take turns, and medians of
their ratios are printed: load from elsewhere slows them alike. `bandwidth` is the share of what the
plain read reached; `torch` is how many times as fast as F.linear in bfloat16 on one weight.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
import torch

from quire.ops.native import NativeKernels
from quire.ops.native_gemm import PackedLinear, Pool

SHAPES = {
    "qkv": (4096, 1024),
    "o": (1024, 2048),
    "gate_up": (6144, 1024),
    "down": (1024, 3072),
    "lm_head": (151936, 1024),
}
COPIED_BYTES = 192 << 20
READ_BYTES = 128 << 20


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def plain_read(buffer: np.ndarray, threads: int) -> Callable[[], None]:
    """A read of the buffer by `threads` threads, as quire.bench.bandwidth does it."""
    parts = np.array_split(buffer, threads)

    def read() -> None:
        workers = [threading.Thread(target=np.bitwise_or.reduce, args=(part,)) for part in parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return read


def measure(
    layers: list[PackedLinear], rows: int, read: Callable[[], None], passes: int
) -> dict[str, float]:
    """Medians over the passes: seconds a product, its share of the bandwidth, times torch."""
    n, k = layers[0].shape
    x, out = torch.randn(rows, k).bfloat16(), torch.zeros(rows, n, dtype=torch.bfloat16)
    weight = torch.randn(n, k).bfloat16() if rows > 16 else None

    def products() -> None:
        for layer in layers:
            layer.forward(x, out=out)

    nbytes = sum(layer.nbytes for layer in layers)
    products()
    times, shares, ratios = [], [], []
    for _ in range(passes):
        reading = seconds(read) / READ_BYTES
        times.append(seconds(products))
        reading = (reading + seconds(read) / READ_BYTES) / 2
        shares.append(nbytes * reading / times[-1])
        if weight is not None:
            linear = seconds(lambda: torch.nn.functional.linear(x, weight))
            ratios.append(linear / (times[-1] / len(layers)))
    result = {
        "seconds": statistics.median(times) / len(layers),
        "bandwidth": statistics.median(shares),
    }
    if ratios:
        result["torch"] = statistics.median(ratios)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the linear layers of qwen3-0.6b.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 512])
    parser.add_argument("--kinds", nargs="+", default=["bf16", "s8"], choices=["f32", "bf16", "s8"])
    parser.add_argument("--isa", default=None)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES)[:-1], choices=list(SHAPES))
    parser.add_argument("--passes", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kernels, pool = NativeKernels(arguments.isa), Pool(arguments.threads)
    read = plain_read(np.ones(READ_BYTES // 8, dtype=np.int64), arguments.threads)
    print(f"isa {kernels.isa}, {arguments.threads} threads")
    print("op       N x K         rows  kind     GB/s  bandwidth  GFLOP/s   torch")
    for name in arguments.shapes:
        n, k = SHAPES[name]
        weight = torch.randn(n, k).bfloat16()
        for kind in arguments.kinds:
            first = PackedLinear(kernels, pool, weight, kind=kind)
            copies = max(1, COPIED_BYTES // first.nbytes)
            layers = [first]
            layers += [PackedLinear(kernels, pool, weight, kind=kind) for _ in range(copies - 1)]
            for rows in arguments.rows:
                r = measure(layers, rows, read, arguments.passes)
                torch_ratio = f" {r['torch']:7.2f}" if "torch" in r else ""
                print(
                    f"{name:8} {n:6} x {k:4} {rows:5}  {kind:4}"
                    f" {first.nbytes / r['seconds'] / 1e9:8.1f} {r['bandwidth']:9.0%}"
                    f" {2e-9 * rows * n * k / r['seconds']:9.0f}{torch_ratio}"
                )


if __name__ == "__main__":
    main()
