"""What the machine can do: measured once while it is idle, and kept."""

from __future__ import annotations

from pathlib import Path

import msgspec

from quire.core.cost import HardwareProfile
from quire.system import env
from quire.system.hardware import cpu_name

FLOPS_SHARE, ATTENTION_SHARE = 0.75, 0.3
"""Of the peak of small products that large ones, and attention, reach."""
FASTEST = 1e18
"""A second; no machine comes near."""
QUIET = 0.1
"""Share of the cores that others may use while limits are measured."""
TYPES = ("float32", "float16", "bfloat16", "int8")


class Limits(msgspec.Struct, frozen=True):
    """A machine's best.

    Attributes:
        cpu, cores: what it was measured on.
        bandwidth: bytes/s read from memory, by number of threads.
        flops: operations a second in products that fit into the caches, by the type of their
            inputs and the threads.
        disturbance: cores that others used meanwhile, on average.
    """

    cpu: str
    cores: int
    bandwidth: dict[int, float]
    flops: dict[str, dict[int, float]]
    disturbance: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether the machine was too busy for them to be its best."""
        return self.disturbance > QUIET * self.cores

    @property
    def usable(self) -> bool:
        """Whether every rate is possible, and products of float32 are among them."""
        rates = [self.bandwidth, *self.flops.values()]
        return "float32" in self.flops and all(
            known and all(n > 0 and 0.0 < rate < FASTEST for n, rate in known.items())
            for known in rates
        )

    def bandwidth_of(self, threads: float) -> float:
        """Bytes a second."""
        return _at(self.bandwidth, threads)

    def flops_of(self, dtype: str, threads: float) -> float:
        """Operations a second; a type that was not measured counts as float32."""
        return _at(self.flops.get(dtype) or self.flops["float32"], threads)


def profile_of(limits: Limits, threads: float) -> HardwareProfile:
    """What so many threads of the machine give a model; nothing beside it is counted."""
    return HardwareProfile(
        name="this",
        memory_bytes=0,
        bytes_per_second=limits.bandwidth_of(threads),
        flops_per_second={dtype: limits.flops_of(dtype, threads) for dtype in TYPES},
        bandwidth_share=1.0,
        flops_share=FLOPS_SHARE,
        attention_share=ATTENTION_SHARE,
        overhead_seconds=0.0,
        seq_overhead_seconds=0.0,
    )


def _at(known: dict[int, float], threads: float) -> float:
    """What so many threads reach; between two numbers that were measured, in proportion."""
    counts = sorted(known)
    if threads >= counts[-1]:
        return known[counts[-1]]
    above = next(n for n in counts if n >= threads)
    below = max((n for n in counts if n <= threads), default=0)
    low, high = known.get(below, 0.0), known[above]
    return low + (high - low) * (threads - below) / max(1, above - below)


def limits_file() -> Path:
    """Where this machine's are kept."""
    return env.cache_dir() / "limits.json"


def load_limits(cores: int) -> Limits | None:
    """What was measured on this machine; None if nothing usable was, or it was another."""
    try:
        limits = msgspec.json.decode(limits_file().read_bytes(), type=Limits)
    except (OSError, msgspec.MsgspecError):
        return None
    ours = (limits.cpu, limits.cores) == (cpu_name(), cores) and limits.usable
    return limits if ours else None


def save_limits(limits: Limits) -> None:
    file = limits_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(limits))
    temporary.replace(file)
