"""Measure this machine's limits for `quire explain`.

`python -m quire.bench.kernels.limits` prints `explain.limits.Limits` as JSON, in its own process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from quire.core.errors import QuireError
from quire.explain.host import read_host, use_between
from quire.explain.limits import Limits, load_limits, save_limits
from quire.system.hardware import cpu_name, detect

if TYPE_CHECKING:
    from quire.bench.kernels import timing
    from quire.bench.kernels.case import Variant
    from quire.ops.interface import Ops

TYPES = (("float32", None), ("bfloat16", None), ("float16", None), ("bfloat16", "int8"))
ROUNDS = 5
BUFFER_BYTES = 2**29
HEADS, KEY_HEADS, HEAD_DIM, BLOCK = 16, 8, 128, 16
"""Of the attention that is measured: a layer of a small model."""
QUERIES, CONTEXT = 128, 512
"""The last tokens of a prompt, and all of it."""


def measure() -> Limits:
    """Measure with one thread and with all cores, in a few seconds; the machine should be idle."""
    cores, before = detect().cores, read_host()
    counts = sorted({1, cores})
    found = {threads: _measure(threads) for threads in counts}
    bandwidth = {threads: limits.bandwidth for threads, (limits, *_) in found.items()}
    flops = {
        name: {
            threads: limits.flops(variants[name])
            for threads, (limits, variants, _) in found.items()
        }
        for name in found[cores][1]
    }
    attention = {threads: rate for threads, (*_, rate) in found.items()}
    use = use_between(before, read_host())
    return Limits(cpu_name(), cores, bandwidth, flops, use.others if use else 0.0, attention)


def _measure(threads: int) -> tuple[timing.Limits, dict[str, Variant], float]:
    """Return the best of some rounds, the variants of products by dtype or quantization, and the
    operations/s of attention."""
    from quire.bench.bandwidth import Reader
    from quire.bench.kernels import timing
    from quire.bench.kernels.case import Variant
    from quire.ops.native.kernels import available_isas
    from quire.ops.providers import load_ops

    found = timing.Limits(Reader(threads, BUFFER_BYTES))
    variants = {
        quantization or dtype: Variant(0, dtype, available_isas()[-1], quantization)
        for dtype, quantization in TYPES
    }
    for variant in variants.values():
        ops = load_ops("cpu", variant.isa, threads, variant.quantization)
        found.add_products(ops, variant)
    attend, attention = _attention(load_ops("cpu", available_isas()[-1], threads)), 0.0
    for _ in range(ROUNDS):
        found.measure()
        attention = max(attention, attend())
    return found, variants, attention


def _attention(ops: Ops) -> Callable[[], float]:
    """Return a function that computes a layer's attention and returns its operations/s."""
    import numpy as np

    from quire.bench.kernels.case import noise
    from quire.core.dtypes import BFLOAT16
    from quire.ops.metadata import AttentionMetadata, KVCache

    random, blocks = np.random.default_rng(0), CONTEXT // BLOCK
    q, k, v = (
        ops.array(noise(random, shape, BFLOAT16))
        for shape in ((QUERIES, HEADS, HEAD_DIM), *[(blocks, KEY_HEADS, BLOCK, HEAD_DIM)] * 2)
    )
    meta = AttentionMetadata(
        query_start_loc=np.array([0, QUERIES], np.int32),
        seq_lens=np.array([CONTEXT], np.int32),
        block_tables=ops.array(np.arange(blocks, dtype=np.int32)[np.newaxis]),
        slot_mapping=ops.array(np.arange(CONTEXT - QUERIES, CONTEXT)),
        num_seqs=1,
        block_size=BLOCK,
    )
    pairs = sum(range(CONTEXT - QUERIES + 1, CONTEXT + 1))

    def attend() -> float:
        start = time.perf_counter()
        ops.paged_attention(q, KVCache(k, v), meta, HEAD_DIM**-0.5, None)
        return 4 * pairs * HEADS * HEAD_DIM / (time.perf_counter() - start)

    attend()
    return attend


def measure_and_keep() -> Limits:
    """Run `measure` in a fresh process, and save the limits for `explain.limits.load_limits`.

    If other processes use the machine meanwhile, measure twice and take the quieter one.

    Raises:
        QuireError: it failed.
    """
    print("Measuring this machine's limits for a few seconds …", file=sys.stderr)
    limits = measured()
    if limits.disturbed:
        print("Other processes use this machine; measuring again …", file=sys.stderr)
        limits = min(limits, measured(), key=lambda found: found.disturbance)
    if limits.disturbed:
        print(
            f"warning: other processes used {limits.disturbance:.1f} of {limits.cores} cores "
            "meanwhile. The limits are saved with this mark; the next --measure replaces them.",
            file=sys.stderr,
        )
    try:
        save_limits(limits)
    except OSError as error:
        print(
            f"warning: The limits cannot be saved: {error}. Set QUIRE_CACHE_DIR to a writable "
            "folder.",
            file=sys.stderr,
        )
    return limits


def known_or_measured() -> Limits:
    """Return this machine's limits; measure them if they are unknown or disturbed.

    Raises:
        QuireError: measuring failed.
    """
    limits = load_limits(detect().cores)
    return measure_and_keep() if limits is None or limits.disturbed else limits


def measured() -> Limits:
    """Run `measure` in a fresh process."""
    command = [sys.executable, "-m", "quire.bench.kernels.limits"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise QuireError(
            f"This machine's limits could not be measured: {done.stderr.decode()[-500:].strip()}"
        )
    return msgspec.json.decode(done.stdout, type=Limits)


if __name__ == "__main__":
    print(msgspec.json.encode(measure()).decode())
