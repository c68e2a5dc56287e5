"""Measure this machine's limits for `quire explain`.

`python -m quire.bench.kernels.limits` prints `explain.limits.Limits` as JSON, in its own process.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from typing import Any

import msgspec

from quire.core.errors import QuireError
from quire.explain.host import read_host, use_between
from quire.explain.limits import Limits, load_limits, save_limits
from quire.system.hardware import cpu_name, detect

PEAKS = ("float32", "bfloat16", "float16", "int8", "int4")
"""Product types whose peak is measured with products that fit into the caches."""
ROUNDS = 5
BUFFER_BYTES = 2**29


def measure() -> Limits:
    """Measure with one thread and with all cores, in some seconds; the machine should be idle."""
    before, found = read_host(), []
    for threads in sorted({1, detect().cores}):
        meter = Meter(threads)
        for _ in range(ROUNDS + 1):
            meter.turn()
        found.append(meter.limits())
    use = use_between(before, read_host())
    names = ("bandwidth", "flops", "attention", "reads", "products", "keys")
    return msgspec.structs.replace(
        found[-1],
        disturbance=use.others if use else 0.0,
        **{name: _joined([getattr(one, name) for one in found]) for name in names},
    )


def _joined(tables: list[dict[Any, Any]]) -> dict[Any, Any]:
    """Return one table of rates by number of threads, or by type and number of threads."""
    if any(isinstance(value, dict) for value in tables[0].values()):
        return {name: _joined([table[name] for table in tables]) for name in tables[0]}
    return {threads: rate for table in tables for threads, rate in table.items()}


class Meter:
    """Measures the rates of a number of threads, in turns."""

    def __init__(self, threads: int) -> None:
        from quire.bench.bandwidth import Reader
        from quire.bench.kernels import timing
        from quire.bench.kernels.case import Variant
        from quire.bench.kernels.rates import FORMATS, Attention, Products
        from quire.ops.native.kernels import available_isas
        from quire.ops.providers import load_ops

        isa = available_isas()[-1]
        self._threads, self._warm = threads, False
        self._peaks = timing.Limits(Reader(threads, BUFFER_BYTES))
        self._variants = {
            name: Variant(0, FORMATS[name][0], isa, FORMATS[name][1]) for name in PEAKS
        }
        for variant in self._variants.values():
            ops = load_ops("cpu", isa, threads, variant.quantization)
            self._peaks.add_products(ops, variant)
        self._formats = {
            name: Products(load_ops("cpu", isa, threads, packing), name)
            for name, (_, packing) in FORMATS.items()
        }
        self._attention = Attention(load_ops("cpu", isa, threads))

    def turn(self) -> None:
        """Measure everything once; the first turn only warms up."""
        if self._warm:
            self._peaks.measure()
        self._attention.measure()
        for each in self._formats.values():
            each.measure()
        self._warm = True

    def limits(self) -> Limits:
        """Return the rates of the turns so far, of a machine that always has so many threads.

        Bandwidth and peaks are the best of the turns, the others the medians.
        """
        from quire.bench.kernels.rates import PROMPT, overlap_of

        def of(rate: float) -> dict[int, float]:
            return {self._threads: rate}

        times = {name: each.medians() for name, each in self._formats.items()}
        fastest = max(each.nbytes / min(each.seconds[1]) for each in self._formats.values())
        return Limits(
            cpu=cpu_name(),
            cores=self._threads,
            bandwidth=of(max(self._peaks.bandwidth, fastest)),
            flops={name: of(self._peaks.flops(v)) for name, v in self._variants.items()},
            attention=of(median(self._attention.rates[1:])),
            reads={n: of(each.nbytes / times[n][1]) for n, each in self._formats.items()},
            products={n: of(each.flops / times[n][PROMPT]) for n, each in self._formats.items()},
            keys=of(median(self._attention.keys[1:])),
            overlaps={name: overlap_of(each) for name, each in times.items()},
        )


def measure_and_keep() -> Limits:
    """Run `measure` in a fresh process, and save the limits for `explain.limits.load_limits`.

    If other processes use the machine meanwhile, measure twice and take the quieter one.

    Raises:
        QuireError: it failed.
    """
    print("Measuring this machine's limits for 10 to 20 seconds …", file=sys.stderr)
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
    """Return this machine's limits; measure them if they are incomplete or disturbed.

    Raises:
        QuireError: measuring failed.
    """
    limits = load_limits(detect().cores)
    known = limits is not None and limits.reads and not limits.disturbed
    return limits if limits is not None and known else measure_and_keep()


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
