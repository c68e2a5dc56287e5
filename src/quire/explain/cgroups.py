"""What a process's control groups (cgroups, version 1 or 2) give it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from quire.system.proc import fields, quick, text


class Limit(NamedTuple):
    """A CPU limit in CPUs, and the seconds for which it stopped the group's threads."""

    quota: float
    throttled: float


def cpu_limit(pids: Iterable[int], root: Path) -> Limit:
    """Return the tightest CPU limit of the processes' groups; zeros without one."""
    folders = {folder for pid in pids for folder in _around(pid, "cpu", root)}
    found = [limit for folder in folders if (limit := _limit_of(folder)) is not None]
    return min(found, default=Limit(0.0, 0.0))


def cpu_weight(pids: Iterable[int], root: Path) -> float:
    """Return the smallest weight of the processes' groups beside other groups; 1.0 is usual."""
    found = [1.0]
    for folder in {folder for pid in pids for folder in _around(pid, "cpu", root)}:
        for name, usual in (("cpu.weight", 100), ("cpu.shares", 1024)):
            weight = text(folder / name)
            if weight.isdigit():
                found.append(int(weight) / usual)
    return min(found)


def freezers(pid: int, root: Path) -> list[str]:
    """Return the files that say whether the freezer has stopped a process; see `is_frozen`."""
    folder = next(_around(pid, "freezer", root), None)
    names = ("freezer.state", "cgroup.events")
    return [] if folder is None else [str(folder / n) for n in names if (folder / n).exists()]


def is_frozen(file: str) -> bool:
    """Return whether a file of `freezers` says so."""
    state = quick(file)
    return state.startswith(b"FROZEN") or b"frozen 1" in state


def memory_wait(pid: int, root: Path) -> float:
    """Return the pressure of memory since the container's or the machine's start, in seconds."""
    lines = text(root / f"proc/{pid}/cgroup").splitlines()
    group = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
    own = text(root / "sys/fs/cgroup" / group / "memory.pressure") if group else ""
    some = (own or text(root / "proc/pressure/memory")).partition("\n")[0]
    total = some.rpartition("total=")[2]
    return int(total) / 1e6 if total.isdigit() else 0.0


def _around(pid: int, controller: str, root: Path) -> Iterator[Path]:
    """Yield the folder of a process's group with this controller, and those around it."""
    for line in text(root / f"proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        here = base / path.lstrip("/")
        yield here
        yield from (folder for folder in here.parents if folder.is_relative_to(base))


def _limit_of(folder: Path) -> Limit | None:
    """Return the limit of one group; None if it has none."""
    usage = fields(text(folder / "cpu.stat"))
    quota, _, period = text(folder / "cpu.max").partition(" ")
    throttled = usage.get("throttled_usec", 0) / 1e6
    if not period:  # v1, which writes -1 for no limit
        quota, period = (text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        throttled = usage.get("throttled_time", 0) / 1e9
    if quota.isdigit() and period.isdigit() and int(period):
        return Limit(int(quota) / int(period), throttled)
    return None
