"""Who used the machine's cores: this engine or others. Read from `/proc`; nothing where there is
none."""

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
        busy: of all CPUs, in all processes; what other virtual machines took included.
        own: of the engine's processes.
        steal: taken by other virtual machines.
        waited: that the engine's threads were ready to run and had no CPU.
    """

    seconds: float
    cpus: int
    busy: float
    own: float
    steal: float
    waited: float

    @property
    def others(self) -> float:
        """CPUs that others kept busy, on average."""
        return max(0.0, self.busy - self.own) / self.seconds


@dataclass(frozen=True, slots=True)
class HostReading:
    """Totals since the machine, or the process, started."""

    moment: float
    busy: float
    steal: float
    cpu_seconds: dict[int, float] = field(repr=False)
    """By process."""
    wait_seconds: dict[tuple[int, int], float] = field(repr=False)
    """By process and thread."""


def read_host(pid: int | None = None) -> HostReading | None:
    """The machine's counters, and those of a process (this one, if None) and its descendants."""
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
    """What lies between two readings; None where one is missing, or no time passed."""
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
    """Seconds in a run queue; 0.0 where the kernel does not count them."""
    try:
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    except (FileNotFoundError, IndexError, ValueError):
        return 0.0
