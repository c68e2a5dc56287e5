"""Times on a GPU, by its own clock, and its measured limits; for `gpu_bars`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

REPETITIONS = 7
UNCACHED = 300 << 20
"""Bytes that no card's cache holds."""
Row = dict[str, Any]


class Card(NamedTuple):
    """A GPU and its measured limits; on the CPU, which stands in for one, there are none."""

    name: str
    device: torch.device
    bytes_per_second: float
    flops: float

    @property
    def real(self) -> bool:
        return self.device.type == "cuda"


def seconds(card: torch.device, works: Sequence[Callable[[], object]]) -> list[float]:
    """Return the time of one call in each repetition, by the card's own clock.

    The calls are replayed from a graph: a launch from Python takes longer than most kernels.
    """
    for work in works:
        work()
    run = partial(_each, works)
    if card.type == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _each(works)
        run = graph.replay
        run()
    times = []
    for _ in range(REPETITIONS):
        if card.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 2000 / len(works))
        else:
            begin = time.perf_counter()
            run()
            times.append((time.perf_counter() - begin) / len(works))
    return times


def host_seconds(card: torch.device, work: Callable[[], object]) -> list[float]:
    """Return the time of calls that give their results to the host."""
    work()
    times = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        work()
        if card.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return times


def _each(works: Sequence[Callable[[], object]]) -> None:
    for work in works:
        work()


def copies(card: Card, nbytes: int) -> int:
    """Return how many tensors of a size no cache of the card holds at once."""
    return -(-UNCACHED // nbytes) if card.real else 1


def measured(dry: bool) -> Card:
    """Return the card with the limits that torch's own copy, reading and product reach."""
    device = torch.device("cpu" if dry else "cuda")
    size = 2**20 if dry else 2**31
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    to = torch.empty_like(source)
    copied = min(seconds(device, [lambda: to.copy_(source)]))
    read = min(seconds(device, [lambda: torch.amax(source.view(torch.int32))]))
    n = 64 if dry else 8192
    a = torch.randn(n, n, device=device).to(torch.bfloat16)
    multiplied = min(seconds(device, [lambda: a @ a]))
    name = "interpreter" if dry else torch.cuda.get_device_name()
    return Card(name, device, max(2 * size / copied, size / read), 2 * n**3 / multiplied)


def row(card: Card, what: str, times: list[float], nbytes: int, flops: int = 0) -> Row:
    """Return the row of a kernel that reads and writes so many bytes."""
    median = statistics.median(times)
    found: Row = {
        "what": what, "card": card.name, "seconds": median, "range": [min(times), max(times)],
    }  # fmt: skip
    if card.real:
        found["bandwidth_share"] = round(nbytes / median / card.bytes_per_second, 3)
        if flops:
            found["flop_share"] = round(flops / median / card.flops, 3)
    return found
