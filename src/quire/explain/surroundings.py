"""What the system gives the engine's processes, from `/proc` and `/sys`.

Every figure that the system does not report is 0, or empty.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable
from pathlib import Path

import msgspec

from quire.explain.cards import Card
from quire.explain.cgroups import cpu_limit, cpu_weight, memory_wait
from quire.explain.host import is_computing, unread
from quire.explain.python import debugging, tracing
from quire.explain.standing import Standing
from quire.system.proc import SYSTEM, family, fields, listed, numbers, text, words
from quire.system.records import dataclass

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
MUCH = 4096
"""Bytes that a client has not read, more than a network holds for a stream of tokens."""
BUSY = 0.1
"""Time that a thread must have run, relative to the busiest one of its process, to compute; and a
process that was started to stand by, relative to the busiest one."""
STANDING_BY = "stand-by"
"""Last argument of a process that waits for the engine core's end; it may have taken its place."""
SIBLINGS = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
_POLICIES = {"5": "idle", "3": "batch"}
"""Scheduling policies that let others run first, the weakest first; see sched(7)."""


class Surroundings(msgspec.Struct, frozen=True):
    """The system around the engine in one window.

    Attributes:
        online: CPUs (hardware threads) of the machine.
        allowed: CPUs that the processes that compute the model may use: their affinity.
        narrowest: the same of the one of these processes that may use the fewest; 0: unknown.
        siblings: hardware threads per core.
        quota: CPUs that the container's limit grants; 0: no limit.
        throttled: seconds during which the limit stopped the container's threads.
        stopped: share of the samples at which a signal had stopped a process of the engine.
        halted: the process that was stopped the most often; 0: none.
        swapped: bytes of the engine that are in swap.
        swap_rate: bytes/s that the machine reads from swap and writes to it.
        read_rate: bytes/s that the engine reads from disks.
        disk_wait: seconds that the engine's threads waited for disks.
        clock: speed of the CPUs relative to their highest, mean of the two readings.
        huge_pages: the system's setting: "always", "madvise" or "never"; "refused" if the engine's
            processes may not have them (prctl).
        remote: share of the engine's memory on nodes without its CPUs.
        nodes: memory nodes of the machine.
        free: bytes of memory that are available.
        memory_wait: seconds during which some process of the container (cgroup v2), else of the
            machine, waited for memory to be reclaimed.
        open_files, most_files: file descriptors of the engine's process that is nearest to its
            limit, and that limit.
        nice: lowest priority of the engine's processes; 0 is the usual one, 19 the lowest.
        policy: "idle" or "batch" if a process of the engine is scheduled so, else empty.
        weight: smallest CPU weight (cpu.weight, cpu.shares) of the engine's control groups,
            relative to the usual one.
        tracer: process that traces one of the engine's (a debugger, strace); 0: none.
        connections, unread: TCP connections of the API process, and those whose clients leave
            `MUCH` bytes or more unread at both readings.
        debugging: what slows Python in the engine's processes: "PYTHONDEVMODE", "-m cProfile" …
        paused: share of the window in which the API process was due and neither ran nor waited for
            a CPU: it was stopped, or blocked. 0 offline.
        standing: processes other than the API's that slept in the middle of their work.
        cards: GPUs on which the processes compute; `collect` adds them.
    """

    online: int = 0
    allowed: int = 0
    narrowest: int = 0
    siblings: int = 1
    quota: float = 0.0
    throttled: float = 0.0
    stopped: float = 0.0
    halted: int = 0
    swapped: int = 0
    swap_rate: float = 0.0
    read_rate: float = 0.0
    disk_wait: float = 0.0
    clock: float = 0.0
    huge_pages: str = ""
    remote: float = 0.0
    nodes: int = 1
    free: int = 0
    memory_wait: float = 0.0
    open_files: int = 0
    most_files: int = 0
    nice: int = 0
    policy: str = ""
    weight: float = 1.0
    tracer: int = 0
    connections: int = 0
    unread: int = 0
    debugging: list[str] = []
    paused: float = 0.0
    standing: list[Standing] = []
    cards: list[Card] = []


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters since the system's or the processes' start, and present states."""

    now: Surroundings
    throttled: float
    memory_wait: float
    swapped_pages: int
    read_bytes: dict[int, int]
    disk_wait: dict[int, float]


def memory_nodes(root: Path = SYSTEM) -> list[Path]:
    """Return the folders of the machine's memory nodes."""
    return listed(root / "sys/devices/system/node", "node[0-9]*")


def read(pid: int | None = None, root: Path = SYSTEM) -> Reading:
    """Read the system's figures for a process (None: this one) and its descendants."""
    first = os.getpid() if pid is None else pid
    pids = family(first, root)
    each = [_allowed(pid, root) for pid in _computing(pids, root)]
    cpus = set().union(*each)
    quota, throttled = cpu_limit(pids, root)
    memory = fields(text(root / "proc/meminfo"))
    paging = fields(text(root / "proc/vmstat"))
    nodes = memory_nodes(root)
    status = [fields(text(root / f"proc/{p}/status")) for p in pids]
    files, most_files = _files(pids, root)
    queues = unread() if pid is None else []
    refused = any(found.get("THP_enabled", 1) == 0 for found in status)
    now = Surroundings(
        online=len(numbers(text(root / "sys/devices/system/cpu/online"))),
        allowed=len(cpus),
        narrowest=min(map(len, each), default=0),
        siblings=max(1, len(numbers(text(root / SIBLINGS.format(next(iter(cpus), 0)))))),
        quota=quota,
        swapped=sum(found.get("VmSwap", 0) for found in status) * 1024,
        clock=_clock(root),
        huge_pages="refused" if refused else chosen(text(root / HUGE_PAGES)),
        remote=_remote(pids, cpus, nodes, root) if len(nodes) > 1 else 0.0,
        nodes=max(1, len(nodes)),
        free=memory.get("MemAvailable", 0) * 1024,
        open_files=files,
        most_files=most_files,
        nice=max((int(_stat(p, 16, root)) for p in pids), default=0),
        policy=_policy(pids, root),
        weight=cpu_weight(pids, root),
        connections=len(queues),
        unread=sum(nbytes >= MUCH for nbytes in queues),
        debugging=debugging(pids, root) + (tracing() if pid is None else []),
        tracer=max((found.get("TracerPid", 0) for found in status), default=0),
    )
    reads = {p: fields(text(root / f"proc/{p}/io")).get("read_bytes", 0) for p in pids}
    waits = {p: _disk_wait(p, root) for p in pids}
    swapped = paging.get("pswpin", 0) + paging.get("pswpout", 0)
    return Reading(now, throttled, memory_wait(first, root), swapped, reads, waits)


def between(first: Reading, last: Reading, seconds: float, stopped: float) -> Surroundings:
    """Return the figures of the time between two readings.

    Args:
        stopped: share of the samples at which a process was stopped.
    """
    seconds = max(seconds, 1e-9)
    read_bytes = sum(n - first.read_bytes.get(p, 0) for p, n in last.read_bytes.items())
    waited = sum(s - first.disk_wait.get(p, 0.0) for p, s in last.disk_wait.items())
    full = max(first.now, last.now, key=lambda now: now.open_files / max(1, now.most_files))
    return msgspec.structs.replace(
        last.now,
        open_files=full.open_files,
        most_files=full.most_files,
        unread=min(first.now.unread, last.now.unread),
        throttled=max(0.0, last.throttled - first.throttled),
        memory_wait=max(0.0, last.memory_wait - first.memory_wait),
        stopped=stopped,
        swap_rate=max(0, last.swapped_pages - first.swapped_pages) * _PAGE / seconds,
        read_rate=max(0, read_bytes) / seconds,
        disk_wait=max(0.0, waited),
        clock=(first.now.clock + last.now.clock) / 2,
    )


def _computing(pids: list[int], root: Path) -> list[int]:
    """Return the processes that compute the model, each of which may have CPUs of its own.

    One that stands by does not. Without a known name, they are those that ran the longest behind
    the first.
    """
    ran = {pid: _ticks(pid, root) for pid in pids}
    commands = {pid: words(root / f"proc/{pid}/cmdline") for pid in pids}
    named = [p for p in pids if is_computing(commands[p])]
    if named:
        least = BUSY * max(ran[pid] for pid in named)
        return [p for p in named if STANDING_BY not in commands[p] or ran[p] >= least]
    behind = {pid: ran[pid] for pid in pids[1:]} or ran
    return [pid for pid, ticks in behind.items() if 2 * ticks >= max(behind.values())]


def _allowed(pid: int, root: Path) -> set[int]:
    """Return the CPUs that some thread of the process may use, of those that ran the most."""
    tasks = listed(root / f"proc/{pid}/task")
    ran = [_ticks(f"{pid}/task/{task.name}", root) for task in tasks]
    busy = [task for task, ticks in zip(tasks, ran, strict=True) if ticks >= BUSY * max(ran)]
    lines = [line for task in busy for line in text(task / "status").splitlines()]
    lists = [line.partition(":")[2] for line in lines if line.startswith("Cpus_allowed_list:")]
    return set().union(*map(numbers, lists))


def _files(pids: Iterable[int], root: Path) -> tuple[int, int]:
    """Return the open files and the limit of the process that is nearest to its limit."""
    try:
        os.close(os.open(root, os.O_RDONLY))
    except OSError as error:
        if error.errno == errno.EMFILE:  # then nothing below can be read, either
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return most, most
    found = (0, 0)
    for pid in pids:
        lines = text(root / f"proc/{pid}/limits").splitlines()
        limit = next((ln.split() for ln in lines if ln.startswith("Max open files")), [])
        if len(limit) > 3 and limit[3].isdigit() and int(limit[3]):
            files, most = len(listed(root / f"proc/{pid}/fd")), int(limit[3])
            found = max(found, (files, most), key=lambda pair: pair[0] / max(1, pair[1]))
    return found


def _ticks(process: int | str, root: Path) -> int:
    """Return how long a process, or a thread (PID/task/TID), has run, in clock ticks."""
    return int(_stat(process, 11, root)) + int(_stat(process, 12, root))


def _stat(pid: int | str, field: int, root: Path) -> str:
    """Return a field of `/proc/PID/stat`, counted from the state; "0" if it is missing."""
    found = text(root / f"proc/{pid}/stat").rpartition(")")[2].split()
    return found[field] if len(found) > field else "0"


def _policy(pids: Iterable[int], root: Path) -> str:
    """Return the weakest scheduling policy of the processes; see `Surroundings.policy`."""
    found = {_POLICIES.get(_stat(pid, 38, root), "") for pid in pids}
    return next((name for name in _POLICIES.values() if name in found), "")


def _clock(root: Path) -> float:
    """Return the mean speed of the CPUs, relative to the highest; 0.0 if unknown."""
    ratios = []
    for folder in listed(root / "sys/devices/system/cpu", "cpu[0-9]*/cpufreq"):
        now, most = (text(folder / name) for name in ("scaling_cur_freq", "cpuinfo_max_freq"))
        if now.isdigit() and most.isdigit() and int(most):
            ratios.append(min(1.0, int(now) / int(most)))
    return sum(ratios) / len(ratios) if ratios else 0.0


def _remote(pids: Iterable[int], cpus: set[int], nodes: list[Path], root: Path) -> float:
    """Return the share of the processes' pages on nodes that have none of their CPUs."""
    near = {n.name for n in nodes if numbers(text(n / "cpulist")) & cpus}
    pages = {node.name: 0 for node in nodes}
    for pid in pids:
        for word in text(root / f"proc/{pid}/numa_maps").split():
            name, _, count = word.partition("=")
            if name[:1] == "N" and name[1:].isdigit() and count.isdigit():
                node = f"node{name[1:]}"
                pages[node] = pages.get(node, 0) + int(count)
    total = sum(pages.values())
    far = sum(count for name, count in pages.items() if name not in near)
    return far / total if total and near else 0.0


def _disk_wait(pid: int, root: Path) -> float:
    """Return the seconds that a process's threads waited for disks; see `delayacct` in proc(5)."""
    tasks = listed(root / f"proc/{pid}/task")
    return sum(int(_stat(f"{pid}/task/{task.name}", 39, root)) for task in tasks) / _TICK


def chosen(setting: str) -> str:
    """Return the word in brackets of "always [madvise] never"."""
    return setting.partition("[")[2].partition("]")[0]
