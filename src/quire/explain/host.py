"""CPU use of this engine and of other processes, from `/proc`; None without `/proc`."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import sys
import termios
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

import msgspec

from quire.system.proc import SYSTEM, family, listed, quick, text, words
from quire.system.records import dataclass

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
ESTABLISHED, LISTENING = "01", "0A"
"""States in a row of /proc/net/tcp."""
COMPUTING = ("quire.engine.process", "quire.executor.rank")
"""Modules whose processes compute the model."""
MOST_THREADS = 64
MOST_PROCESSES = 1000
"""On a machine with more, neighbours have no names: reading them would take too long."""
MOST_NEIGHBOURS = 3
LATE_TIMER = 0.02
"""Seconds that a timer may be late on a machine that stops nobody."""
VISIBLE = 0.1
"""CPUs that a neighbour must use to be named."""


class Neighbour(msgspec.Struct, frozen=True):
    """Another process that uses CPUs.

    Attributes:
        cpus: mean number of CPUs that it used.
        client: it is connected to this engine.
    """

    name: str
    pid: int
    cpus: float
    client: bool = False


class Worker(msgspec.Struct, frozen=True):
    """A process that computes a part of the model.

    Attributes:
        ran: seconds that its busiest thread ran.
        waited: seconds that this thread was ready to run and had no CPU.
    """

    pid: int
    ran: float
    waited: float


class HostUse(msgspec.Struct, frozen=True):
    """CPU seconds between two readings.

    Attributes:
        seconds: wall time.
        cpus: hardware threads of the machine.
        busy: of all CPUs and processes, including `steal`.
        own: of the engine's processes.
        steal: taken by other virtual machines.
        waited: while the engine's threads were ready to run and had no CPU.
        waits: the same of each thread of the core, the one that ran the longest first; at most
            `MOST_THREADS`. Offline the core is this process, else a child of it.
        loop_waited: the same of the event loop's thread; 0 offline.
        front_waited: the same of the API process's other threads, which may hold its lock; 0
            offline.
        workers: processes that compute the model on this machine, in the order of their ranks.
        neighbours: other processes that used the most, with their names.
    """

    seconds: float
    cpus: int
    busy: float
    own: float
    steal: float
    waited: float
    waits: list[float] = []
    loop_waited: float = 0.0
    front_waited: float = 0.0
    workers: list[Worker] = []
    neighbours: list[Neighbour] = []

    @property
    def clients(self) -> float:
        """Return the mean number of CPUs that clients on this machine used."""
        return min(self.others, sum(n.cpus for n in self.neighbours if n.client))

    def waited_share(self, threads: int, model: float) -> float:
        """Return the share of the time that each of so many computing threads waited for a core.

        Args:
            model: share of the time in which they compute.
        """
        if any(self.waits):  # the threads that ran the longest compute the model
            kernels = self.waits[:threads]
            return min(0.95, sum(kernels) / (len(kernels) * self.seconds))
        if self.waited:
            return min(0.95, self.waited / (threads * self.seconds))
        wanted = self.others + threads * model  # the kernel does not count it
        return model * max(0.0, 1.0 - self.cpus / max(wanted, 1e-9))

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
    threads: dict[tuple[int, int], _Thread] = field(repr=False)
    """By process and thread."""
    others: dict[int, float] = field(repr=False)
    """Seconds of processes that are not the engine's; empty if there are too many."""


class _Thread(NamedTuple):
    """Seconds that a thread ran, and that it was ready to run without a CPU."""

    ran: float
    waited: float


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
    found: dict[tuple[int, int], _Thread] = {}
    for process in family(os.getpid() if pid is None else pid):
        with suppress(OSError):  # it has just exited
            cpu[process] = _cpu_seconds(process)
            for thread in listed(_PROC / str(process) / "task"):
                with suppress(ProcessLookupError):
                    found[process, int(thread.name)] = _scheduled(thread)
    busy = user + nice + system + irq + softirq + steal
    return HostReading(time.monotonic(), busy, steal, cpu, found, _others(cpu))


def use_between(first: HostReading | None, last: HostReading | None) -> HostUse | None:
    """Return the CPU use between two readings; None if one is missing, or no time passed."""
    if first is None or last is None or last.moment <= first.moment:
        return None
    own = sum(s - first.cpu_seconds.get(pid, 0.0) for pid, s in last.cpu_seconds.items())
    none = _Thread(0.0, 0.0)
    ran = {
        key: _Thread(*(b - a for a, b in zip(first.threads.get(key, none), now, strict=True)))
        for key, now in last.threads.items()
    }
    waited = sum(thread.waited for thread in ran.values())
    front = next(iter(last.cpu_seconds), 0)
    core = [thread for (pid, _), thread in ran.items() if pid != front]
    loop = ran.get((front, front), none).waited if core else 0.0
    beside = sum(t.waited for (pid, _), t in ran.items() if pid == front) - loop if core else 0.0
    waits = [t.waited for t in sorted(core or ran.values(), key=lambda thread: -thread.ran)]
    seconds = last.moment - first.moment
    return HostUse(
        seconds=seconds,
        cpus=os.cpu_count() or 1,
        busy=last.busy - first.busy,
        own=own,
        steal=last.steal - first.steal,
        waited=waited,
        waits=waits[:MOST_THREADS],
        loop_waited=loop,
        front_waited=beside,
        workers=list(_workers(last.cpu_seconds, ran)),
        neighbours=_neighbours(first, last, seconds),
    )


def is_computing(command: Iterable[str]) -> bool:
    """Return whether a process with this command line computes the model."""
    return any(name in word for word in command for name in COMPUTING)


def _workers(
    pids: Iterable[int], ran: Mapping[tuple[int, int], _Thread], root: Path = SYSTEM
) -> Iterator[Worker]:
    """Yield the engine's processes that compute the model; they started in the order of ranks."""
    for pid in sorted(pids):
        if is_computing(words(root / f"proc/{pid}/cmdline")):
            threads = (thread for (process, _), thread in ran.items() if process == pid)
            busiest = max(threads, key=sum, default=_Thread(0.0, 0.0))
            yield Worker(pid, busiest.ran, busiest.waited)


class Pauses:
    """Adds up the time in which this process was due, and neither ran nor waited for a CPU."""

    def __init__(self) -> None:
        self.seconds = self._waited = 0.0
        self._counted = self._count()

    def add(self, elapsed: float, due: float | None) -> None:
        """Add the time since the last call, of which `due` seconds were slept by intent."""
        before, self._counted = self._counted, self._count()
        if due is not None:
            lost = elapsed - due - (self._counted - before)
            self.seconds += lost if lost > LATE_TIMER else 0.0

    def _count(self) -> float:
        """Return the seconds that this process ran, and that this thread waited for a CPU."""
        counted = quick("/proc/thread-self/schedstat").split()
        if len(counted) > 1:  # else this process has as many open files as it may have
            self._waited = int(counted[1]) / 1e9
        return time.process_time() + self._waited


def _others(own: Collection[int]) -> dict[int, float]:
    """Return the CPU seconds of processes outside of the engine."""
    try:
        pids = [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return {}
    if len(pids) > MOST_PROCESSES:
        return {}
    found = {}
    for pid in pids:
        if pid not in own:
            with suppress(OSError):
                found[pid] = _cpu_seconds(pid)
    return found


def _neighbours(first: HostReading, last: HostReading, seconds: float) -> list[Neighbour]:
    """Return the other processes that used the most CPU time between two readings."""
    used = {pid: (s - first.others.get(pid, 0.0)) / seconds for pid, s in last.others.items()}
    most = sorted(used, key=lambda pid: -used[pid])[:MOST_NEIGHBOURS]
    seen = [pid for pid in most if used[pid] >= VISIBLE]
    ends = peers(last.cpu_seconds) if seen else set()
    return [
        Neighbour(name, pid, used[pid], not ends.isdisjoint(sockets(pid)))
        for pid in seen
        if (name := text(_PROC / str(pid) / "comm"))
    ]


def peers(pids: Iterable[int], root: Path = SYSTEM) -> set[str]:
    """Return the inodes of the sockets on this machine that are connected to these processes."""
    rows = list(tcp_rows(ESTABLISHED, root))
    mine = {inode for pid in pids for inode in sockets(pid, root)}
    ends = {(remote, local) for local, remote, inode in rows if inode in mine}
    return {inode for local, remote, inode in rows if (local, remote) in ends} - mine


def unread() -> list[int]:
    """Return the bytes that each connection of this process holds for a client that has not read.

    Linux needs milliseconds to list all connections in /proc. Without a free descriptor there is
    nothing to read.
    """
    found, names = list[int](), list[str]()
    with suppress(OSError):
        names = os.listdir("/proc/self/fd")
    for name in names:
        with suppress(OSError):  # closed, no socket, or not connected
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as own:
                    if own.family != socket.AF_UNIX and own.getpeername():
                        found.append(_queued(own))
    return found


def _queued(own: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(own, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def tcp_rows(state: str, root: Path = SYSTEM) -> Iterator[tuple[str, str, str]]:
    """Yield local address, remote address and inode of the TCP sockets in this state."""
    for table in ("tcp", "tcp6"):
        for fields in map(str.split, text(root / "proc/net" / table).splitlines()[1:]):
            if fields[3] == state:
                # IPv4 inside of IPv6 ends with the same eight digits and the port.
                yield fields[1][-13:], fields[2][-13:], fields[9]


def sockets(pid: int, root: Path = SYSTEM) -> Iterator[str]:
    """Yield the inodes of a process's sockets."""
    for link in listed(root / f"proc/{pid}/fd"):
        with suppress(OSError):
            target = os.readlink(link)
            if target.startswith("socket:["):
                yield target[8:-1]


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", "rb") as file:  # of every process: no `Path`, which is slower
        fields = file.read().rpartition(b")")[2].split(None, 14)
    return (int(fields[11]) + int(fields[12])) / _TICK


def _scheduled(thread: Path) -> _Thread:
    """Return a thread's seconds on a CPU and in a run queue; zeros if the kernel counts none.

    Raises ProcessLookupError for a thread that has exited: zeros would take back what it waited.
    """
    ran, waited, *_ = [*text(thread / "schedstat").split(), 0, 0]
    if not ran and not thread.exists():
        raise ProcessLookupError
    return _Thread(int(ran) / 1e9, int(waited) / 1e9)
