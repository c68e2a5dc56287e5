"""Time calls in turns, and the limits to compare them with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from quire.bench.bandwidth import Reader
from quire.bench.kernels.case import Call, Case, Variant, noise
from quire.bench.results.report import percentile
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.bench.peers.torch_calls import TorchCalls

STABLE_SPREAD = 0.05
"""Interquartile range of a row's repetitions over their median; above it, a row is unstable."""
_IN_CACHE = ((512, 512, 256), (1024, 1024, 512), (2048, 1024, 512))
"""Products (N, K, rows) that stay in the L2 cache; the best counts."""


class Clock:
    """Times one call repeatedly; its arguments keep rotating."""

    def __init__(self, call: Call, seconds: float) -> None:
        """Warm up. A repetition takes about `seconds`, and at least one call."""
        self._call = call
        self._turn = 0
        self._count = 1
        self._run()
        self._count = max(1, min(10_000, int(seconds / self._run())))
        self.samples: list[float] = []
        """Seconds per call."""

    def repeat(self) -> None:
        """Time one more repetition."""
        self.samples.append(self._run())

    def _run(self) -> float:
        call, turns = self._call, range(self._turn, self._turn + self._count)
        start = time.perf_counter()
        for turn in turns:
            call(turn)
        elapsed = time.perf_counter() - start
        self._turn = turns.stop
        return elapsed / self._count


@dataclass(frozen=True)
class Timed:
    """Seconds per call of a case, one number per repetition, and torch's if requested."""

    case: Case
    samples: list[float]
    torch_samples: list[float] | None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Return the interquartile range over the median; one outlier does not count."""
        middle = percentile(self.samples, 0.75) - percentile(self.samples, 0.25)
        return middle / self.median

    @property
    def times_torch(self) -> float | None:
        """Return the speed relative to torch: the median of the repetitions' ratios."""
        if self.torch_samples is None:
            return None
        ratios = [t / s for t, s in zip(self.torch_samples, self.samples, strict=True)]
        return statistics.median(ratios)


def interleave(
    cases: Sequence[Case], repetitions: int, seconds: float, between: Callable[[], None]
) -> list[Timed]:
    """Time all cases round by round, so that other load slows all of them.

    Args:
        seconds: time of one repetition of one case.
        between: called before each round, to measure the limits.
    """
    clocks = [
        (Clock(case.call, seconds), Clock(case.torch_call, seconds) if case.torch_call else None)
        for case in cases
    ]
    for _ in range(repetitions):
        between()
        for clock, plain in clocks:
            clock.repeat()
            if plain is not None:
                plain.repeat()
    return [
        Timed(case, clock.samples, plain.samples if plain is not None else None)
        for case, (clock, plain) in zip(cases, clocks, strict=True)
    ]


@dataclass
class Limits:
    """The machine's limits: the best of all measurements.

    Attributes:
        bandwidth: bytes per second that the reader's threads read.
    """

    reader: Reader
    bandwidth: float = 0.0
    _flops: dict[tuple[str, str, str | None], float] = field(default_factory=dict)
    _products: dict[tuple[str, str, str | None], list[tuple[int, Call]]] = field(
        default_factory=dict
    )

    def add_products(self, ops: Ops, variant: Variant, torch: TorchCalls | None = None) -> None:
        """Make `measure` time products of `variant`'s dtypes that fit into the caches.

        Args:
            torch: times its products too, if they use the same instructions. Otherwise slow kernels
                would give a low limit.
        """
        key = _key(variant)
        if key in self._products:
            return
        random = np.random.default_rng(0)
        calls: list[tuple[int, Call]] = []
        for n, k, rows in _IN_CACHE:
            shapes = (rows, k), (n, k)
            x, weight = (ops.array(noise(random, s, variant.numpy_dtype)) for s in shapes)
            flops, packed = 2 * rows * n * k, ops.pack_linear(ops.numpy(weight))
            calls.append((flops, partial(_call, ops.linear, x, packed)))
            if torch is not None and variant.quantization is None:
                calls.append((flops, torch.linear([x], [weight])))
        for _, call in calls:
            call(0)
        self._products[key] = calls

    def measure(self) -> None:
        """Time one pass over memory and one of each product; keep the best."""
        self.bandwidth = max(self.bandwidth, self.reader.read() * 1e9)
        for key, calls in self._products.items():
            for flops, call in calls:
                start = time.perf_counter()
                call(0)
                rate = flops / (time.perf_counter() - start)
                self._flops[key] = max(self._flops.get(key, 0.0), rate)

    def drop_products(self) -> None:
        """Keep the measurements, but stop measuring these products."""
        self._products = {key: [] for key in self._products}

    def flops(self, variant: Variant) -> float:
        """Return the FLOP/s of the best product of these dtypes; 0.0 if none was measured."""
        return self._flops.get(_key(variant), 0.0)


def _call(product: Callable[..., Array], x: Array, weight: object, _: int) -> Array:
    return product(x, weight)


def _key(variant: Variant) -> tuple[str, str, str | None]:
    return variant.isa, variant.dtype, variant.quantization
