"""How often processes are seen stopped, or asleep although nobody lets them wait for work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from quire.explain.cgroups import freezers, is_frozen
from quire.explain.host import is_computing
from quire.system.proc import SYSTEM, listed, quick, words

SEEN = 0.05
"""Share of the samples from which a wait is reported."""
MOST_THREADS = 16
_HALTED = frozenset("Tt")
"""States of a process that a signal or a tracer has stopped."""
_FOR_WORK = ("read", "recv", "poll", "select", "accept", "do_wait", "epoll", "skb")
"""Parts of the names of kernel functions in which a process waits for its next work."""
_FOR_OTHERS = "futex"
"""The kernel function in which a thread waits for another thread."""


class Standing(msgspec.Struct, frozen=True):
    """A process that slept in the middle of its work.

    Attributes:
        name: the last part of its module: "process" is the engine core.
        share: of the samples.
        where: kernel function in which it slept most often: "hrtimer_nanosleep", "pipe_write" …
        computes: it computes the model.
    """

    pid: int
    name: str
    share: float
    where: str
    computes: bool = False


class StateCount:
    """Counts the states of a family of processes.

    A sleep counts if no thread of the process runs, and the first thread waits for neither work
    nor, if another computing process runs, for another thread.
    """

    def __init__(self, pids: Iterable[int], root: Path = SYSTEM) -> None:
        self._root = f"{root}/proc".replace("//", "/")
        self._files = {pid: freezers(pid, root) for pid in pids}
        self._tasks = {pid: _tasks(pid, root) for pid in self._files}
        self._names = {pid: words(root / f"proc/{pid}/cmdline") for pid in self._files}
        self._computing = {pid for pid, name in self._names.items() if is_computing(name)}
        self._seen = self._stopped = 0
        self._halts: Counter[int] = Counter()
        self._sleeps: Counter[tuple[int, str]] = Counter()

    def sample(self) -> None:
        """Look once."""
        halted, asleep, running = [], dict[int, str](), False
        for pid, frozen in self._files.items():
            state = process_state(pid, self._root)
            if state in _HALTED or any(map(is_frozen, frozen)):
                halted.append(pid)
            elif state == "R" or self._runs(pid):
                running |= pid in self._computing
            elif state in "SD" and (where := self._where(pid)):
                asleep[pid] = where
        self._seen += 1
        self._stopped += bool(halted)
        self._halts.update(halted)
        self._sleeps.update(
            (pid, where)
            for pid, where in asleep.items()
            if _FOR_OTHERS not in where or (pid in self._computing and not running and not halted)
        )

    def _runs(self, pid: int) -> bool:
        """Return whether a thread other than the first runs, or waits for a CPU."""
        return any(process_state(task, self._root) == "R" for task in self._tasks[pid][1:])

    def _where(self, pid: int) -> str:
        """Return the kernel function in which a process sleeps; "" if it waits for work."""
        where = quick(f"{self._root}/{pid}/wchan").decode(errors="replace").partition(".")[0]
        for_work = _FOR_OTHERS not in where and any(word in where for word in _FOR_WORK)
        return "" if where in ("", "0") or for_work else where

    @property
    def share(self) -> float:
        """Return the share of the samples at which a process was stopped."""
        return self._stopped / max(1, self._seen)

    @property
    def most(self) -> int:
        """Return the process that was stopped the most often; 0 if none was."""
        return max(self._halts, key=self._halts.__getitem__, default=0)

    def standing(self) -> list[Standing]:
        """Return the processes that slept in their work, the most often first."""
        found = []
        for pid in self._files:
            counts = {where: n for (p, where), n in self._sleeps.items() if p == pid}
            share = sum(counts.values()) / max(1, self._seen)
            if share >= SEEN:
                where = max(counts, key=counts.__getitem__)
                name = _module(self._names[pid])
                found.append(Standing(pid, name, share, where, pid in self._computing))
        return sorted(found, key=lambda standing: -standing.share)


def process_state(task: int | str, proc: str = "/proc") -> str:
    """Return a process's or a thread's (PID/task/TID) state: "R", "S", "D", "T" …"""
    return quick(f"{proc}/{task}/stat").rpartition(b")")[2].strip()[:1].decode()


def _tasks(pid: int, root: Path) -> list[str]:
    tasks = listed(root / f"proc/{pid}/task")
    return [f"{pid}/task/{task.name}" for task in sorted(tasks, key=lambda t: int(t.name))][
        :MOST_THREADS
    ]


def _module(command: list[str]) -> str:
    """Return the last part of the module that a command line runs."""
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1].rpartition(".")[2]
    return command[0].rpartition("/")[2] if command else ""
