"""Why a server on this machine does not answer, from `/proc` alone."""

from __future__ import annotations

import time
from pathlib import Path

from quire.explain.host import LISTENING, HostUse, read_host, sockets, tcp_rows, use_between
from quire.explain.report import Cause, Finding
from quire.explain.standing import process_state
from quire.explain.surroundings import Surroundings, between, read
from quire.system.proc import SYSTEM, family, listed

NO_FILES = 0.98
"""Share of the permitted files from which a server accepts no connection."""
WAITING = 0.5
"""Share of the time without a core, or without an answer of the disk, that starves a server."""


def silence(port: int, seconds: float = 2.0) -> Finding | None:
    """Watch the process that listens on a port; return why it is silent, or None if unknown."""
    pid = listener(port)
    if pid is None:
        return None
    states = {p: process_state(p) for p in family(pid)}
    host, system = read_host(pid), read(pid)
    time.sleep(seconds)
    use = use_between(host, read_host(pid))
    return verdict(pid, states, use, between(system, read(pid), seconds, 0.0))


def verdict(
    pid: int, states: dict[int, str], use: HostUse | None, around: Surroundings
) -> Finding | None:
    """Return why a silent server's processes do not run; None if they do.

    Args:
        states: of each process, as in `/proc/PID/stat`.
        use: CPU use of these processes.
    """

    def found(cause: Cause, text: str, share: float = 1.0) -> Finding:
        return Finding(cause, f"The server does not answer: {text}", share)

    if halted := [str(p) for p, state in states.items() if state == "T"]:
        text = f"a signal has stopped its process {', '.join(halted)} (SIGSTOP, a debugger)."
        return found("stopped", f"{text} Continue it with kill -CONT.")
    if around.most_files and around.open_files >= NO_FILES * around.most_files:
        text = (
            f"a process of it has {around.open_files} files and connections open, and may have "
            f"{around.most_files}. Start it with a higher limit (ulimit -n)."
        )
        return found("open_files", text)
    if around.debugging:
        names = ", ".join(around.debugging)
        return found(
            "python_debugging", f"its Python is slowed for debugging ({names}). Start it without."
        )
    if use is None:
        return None
    waited = min(1.0, use.waited / use.seconds)
    disk = min(1.0, around.disk_wait / use.seconds)
    if around.swap_rate and disk >= WAITING:
        text = (
            f"the machine swaps {around.swap_rate / 1e6:,.0f} MB/s; {around.swapped / 2**20:,.0f} "
            "MiB of the server are in swap. Start it with less memory (--gpu-memory-utilization), "
            "or end other programs."
        )
        return found("swapping", text, disk)
    if waited >= WAITING:
        text = (
            f"its threads waited {waited:.0%} of the time for a core, while other processes used "
            f"{use.others:.1f} of {use.cpus} CPUs. Give it cores of its own (taskset, a "
            "container's limit)."
        )
        return found("starved", text, waited)
    return None


def listener(port: int, root: Path = SYSTEM) -> int | None:
    """Return the process that listens on a TCP port of this machine; None if it cannot be seen."""
    rows = tcp_rows(LISTENING, root)
    inodes = {inode for local, _, inode in rows if int(local.rpartition(":")[2], 16) == port}
    pids = (int(folder.name) for folder in listed(root / "proc", "[0-9]*"))
    return next((pid for pid in pids if not inodes.isdisjoint(sockets(pid, root))), None)
