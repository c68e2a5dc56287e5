"""The machine's limits: measured once while it is idle, and saved; of a GPU, from its datasheet."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import msgspec

from quire.core.cost import PROFILES, SIMILAR, HardwareProfile, Overlap
from quire.system import env
from quire.system.hardware import cpu_name

FLOPS_SHARE, ATTENTION_SHARE = 0.8, 0.3
"""Shares of the peak of small products that a prompt's products reach, and attention where it was
not measured."""
KEYS_SHARE = 0.7
"""Share of the bandwidth at which decode attention reads keys and values."""
SLOWEST, FASTEST = 1.0, 1e18
"""Bytes/s or operations/s beyond any machine."""
QUIET = 0.1
"""Share of the cores that others may use while limits are measured."""
TYPES = ("float32", "float16", "bfloat16", "int8", *SIMILAR)


class Limits(msgspec.Struct, frozen=True):
    """A machine's best rates.

    Attributes:
        cpu, cores: the machine that was measured.
        bandwidth: bytes/s read from memory, by number of threads.
        flops: operations/s of products that fit into the caches, by input type and number of
            threads.
        disturbance: mean number of cores that other processes used during the measurement.
        attention: operations/s of attention in a prompt, by number of threads; empty in files of
            versions that did not measure it.
        reads: bytes/s of weights in memory that multiply one row, by product type and number of
            threads. Kernels that decode weights may be slower than memory. May be empty, too.
        products: operations/s of a prompt's rows with such weights.
        overlaps: how reading and multiplying a few rows overlap, by product type.
        keys: bytes/s at which decoding reads keys and values, by number of threads.
    """

    cpu: str
    cores: int
    bandwidth: dict[int, float]
    flops: dict[str, dict[int, float]]
    disturbance: float = 0.0
    attention: dict[int, float] = {}
    reads: dict[str, dict[int, float]] = {}
    products: dict[str, dict[int, float]] = {}
    keys: dict[int, float] = {}
    overlaps: dict[str, Overlap] = {}

    @property
    def disturbed(self) -> bool:
        """Return whether other processes were too busy for a valid measurement."""
        return self.disturbance > QUIET * self.cores

    @property
    def usable(self) -> bool:
        """Return whether every rate is possible, and float32 products were measured."""
        rates = [self.bandwidth, *self.flops.values(), *self.reads.values()]
        for overlap in self.overlaps.values():
            ascending = all(a < b for a, b in pairwise((0.0, *(first for first, _ in overlap))))
            if not ascending or not all(0.0 < both < FASTEST for _, both in overlap):
                return False
        rates += [*self.products.values(), *filter(None, (self.attention, self.keys))]
        return "float32" in self.flops and all(
            known and all(n > 0 and SLOWEST <= rate < FASTEST for n, rate in known.items())
            for known in rates
        )

    def bandwidth_of(self, threads: float) -> float:
        """Return bytes/s."""
        return _at(self.bandwidth, threads)

    def flops_of(self, dtype: str, threads: float) -> float:
        """Return operations/s; of a similar type if it was not measured, else of float32."""
        if dtype not in self.flops and dtype in SIMILAR:
            dtype = SIMILAR[dtype] or "bfloat16"
        return _at(self.flops.get(dtype) or self.flops["float32"], threads)


def profile_of(limits: Limits, threads: float, peaks: bool = False) -> HardwareProfile:
    """Return the hardware profile of `threads` threads, without overheads.

    Args:
        peaks: leave out the rates that kernels reach with weights in memory.
    """
    attention, bandwidth = limits.attention, limits.bandwidth_of(threads)
    flops = {dtype: FLOPS_SHARE * limits.flops_of(dtype, threads) for dtype in TYPES}
    reads = {} if peaks else {name: _at(known, threads) for name, known in limits.reads.items()}
    if not peaks:
        flops |= {name: _at(known, threads) for name, known in limits.products.items()}
    return HardwareProfile(
        name="this",
        memory_bytes=0,
        bytes_per_second=bandwidth,
        weight_bytes_per_second=reads,
        overlaps={} if peaks else limits.overlaps,
        flops_per_second=flops,
        attention_flops_per_second=_at(attention, threads) if attention else None,
        bandwidth_share=1.0,
        flops_share=1.0,
        attention_share=1.0 if attention else ATTENTION_SHARE / FLOPS_SHARE,
        kv_share=_at(limits.keys, threads) / bandwidth if limits.keys else KEYS_SHARE,
        overhead_seconds=0.0,
        seq_overhead_seconds=0.0,
    )


def _at(known: dict[int, float], threads: float) -> float:
    """Return the rate of `threads` threads, interpolated between measured numbers."""
    counts = sorted(known)
    if threads >= counts[-1]:
        return known[counts[-1]]
    above = next(n for n in counts if n >= threads)
    below = max((n for n in counts if n <= threads), default=0)
    low, high = known.get(below, 0.0), known[above]
    return low + (high - low) * (threads - below) / max(1, above - below)


def limits_file() -> Path:
    """Return the path of this machine's saved limits."""
    return env.cache_dir() / "limits.json"


def load_limits(cores: int) -> Limits | None:
    """Return this machine's saved limits; None if they are missing, unusable or another's."""
    try:
        limits = msgspec.json.decode(limits_file().read_bytes(), type=Limits)
    except (OSError, msgspec.MsgspecError):
        return None
    ours = (limits.cpu, limits.cores) == (cpu_name(), cores) and limits.usable
    return limits if ours else None


def card_limits(name: str) -> Limits | None:
    """Return the limits of a GPU with the driver's name for it; None for an unknown one.

    All its threads count as one.
    """
    words = re.findall("[a-z0-9]+", name.lower())
    known = {*words, *(a + b for a, b in pairwise(words))}
    if "pcie" in known:  # slower than those of the datasheets
        return None
    for title, card in PROFILES.items():
        if card.accelerator and known.issuperset(title.split("-")):
            flops = {dtype: {1: rate} for dtype, rate in card.flops_per_second.items()}
            return Limits(name, 1, {1: card.bytes_per_second}, flops)
    return None


def save_limits(limits: Limits) -> None:
    file = limits_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(limits))
    temporary.replace(file)
