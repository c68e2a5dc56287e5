"""CPU use of this engine and of other processes, from `/proc`; None without `/proc`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


class HostUse(msgspec.Struct, frozen=True):
    """CPU seconds between two readings.

    Attributes:
        seconds: wall time.
        cpus: hardware threads of the machine.
        busy: of all CPUs and processes, including `steal`.
        own: of the engine's processes.
        steal: taken by other virtual machines.
        waited: while the engine's threads were ready to run and had no CPU.
    """

    seconds: float
    cpus: int
    busy: float
    own: float
    steal: float
    waited: float

    @property
    def others(self) -> float:
        """Return the mean number of CPUs that other processes used."""
        return max(0.0, self.busy - self.own) / self.seconds


@dataclass(frozen=True, slots=True)
class HostReading:
    """CPU seconds since the machine, or the process, started."""

    moment: float
    busy: float
    steal: float
    cpu_seconds: dict[int, float] = field(repr=False)
    """By process."""
    wait_seconds: dict[tuple[int, int], float] = field(repr=False)
    """By process and thread."""


def read_host(pid: int | None = None) -> HostReading | None:
    """Return the counters of the machine, and of a process and its descendants.

    Args:
        pid: the process; None means this one.
    """
    try:
        ticks = [int(n) for n in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _, _, irq, softirq, steal = (n / _TICK for n in ticks)
    cpu: dict[int, float] = {}
    waits: dict[tuple[int, int], float] = {}
    pending = [os.getpid() if pid is None else pid]
    while pending:
        process = pending.pop()
        try:
            stat = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
            threads = list((_PROC / str(process) / "task").iterdir())
        except OSError:
            continue  # it has just exited
        cpu[process] = sum(int(n) for n in stat[11:13]) / _TICK
        for thread in threads:
            try:
                waits[process, int(thread.name)] = _waited(thread)
                pending += [int(child) for child in (thread / "children").read_text().split()]
            except OSError:
                continue
    return HostReading(
        time.monotonic(), user + nice + system + irq + softirq + steal, steal, cpu, waits
    )


def use_between(first: HostReading | None, last: HostReading | None) -> HostUse | None:
    """Return the CPU use between two readings; None if one is missing, or no time passed."""
    if first is None or last is None or last.moment <= first.moment:
        return None
    own = sum(s - first.cpu_seconds.get(pid, 0.0) for pid, s in last.cpu_seconds.items())
    waited = sum(s - first.wait_seconds.get(key, 0.0) for key, s in last.wait_seconds.items())
    return HostUse(
        seconds=last.moment - first.moment,
        cpus=os.cpu_count() or 1,
        busy=last.busy - first.busy,
        own=own,
        steal=last.steal - first.steal,
        waited=waited,
    )


def _waited(thread: Path) -> float:
    """Return a thread's seconds in a run queue; 0.0 if the kernel does not count them."""
    try:
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    except (FileNotFoundError, IndexError, ValueError):
        return 0.0
