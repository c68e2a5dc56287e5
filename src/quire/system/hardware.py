"""This machine's cores and memory, with container limits."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from quire.system.gpu import detect_gpu
from quire.system.gpu_facts import Gpu
from quire.system.proc import fields, text
from quire.system.records import dataclass

AVAILABLE_SHARE = 0.9
"""Share of the free memory that an engine may use."""
_ARM_CORES = {
    "0xd08": "Arm Cortex-A72",
    "0xd0b": "Arm Cortex-A76",
    "0xd0c": "Arm Neoverse N1",
    "0xd40": "Arm Neoverse V1",
    "0xd49": "Arm Neoverse N2",
    "0xd4f": "Arm Neoverse V2",
}
"""Processors by part number, of Arm's own: Linux reports no names."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware that this process may use.

    Attributes:
        cores: physical cores, limited by a container's CPU quota. Hardware threads do not count:
            two of them share the core's memory port and matrix unit.
        memory_bytes, available_bytes: total memory and free memory.
        gpu: the GPU that torch can use, if there is one.
    """

    cores: int
    memory_bytes: int
    available_bytes: int
    gpu: Gpu | None = None


def detect() -> Hardware:
    """Read the machine; the smaller of the host's and the cgroup's memory limits applies."""
    meminfo = fields(text(Path("/proc/meminfo")))  # kB; empty on macOS
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = meminfo["MemTotal"] * 1024 if "MemTotal" in meminfo else pages
    available = meminfo["MemAvailable"] * 1024 if "MemAvailable" in meminfo else total
    for limit, free in filter(None, map(_cgroup_memory, _cgroups("memory"))):
        total, available = min(total, limit), min(available, free)
    return Hardware(_cores(), memory_bytes=total, available_bytes=available, gpu=detect_gpu())


def cpu_name() -> str:
    """Return the processor's name, or the machine's type if it has none."""
    facts = cpu_facts()
    arm = facts.get("CPU part", "") if facts.get("CPU implementer") == "0x41" else ""
    named = facts.get("model name") or _ARM_CORES.get(arm)
    return named or platform.processor() or platform.machine()


def cpu_facts() -> dict[str, str]:
    """Return the first processor's fields of `/proc/cpuinfo`; empty without that file."""
    first = text(Path("/proc/cpuinfo")).split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def core_cpus() -> list[list[int]]:
    """Return the CPUs that this process may use, by core, sorted by memory node.

    Empty if the system does not report them.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0), key=lambda cpu: (_node(cpu), cpu)):
        cores.setdefault(text(Path(topology.format(cpu))) or str(cpu), []).append(cpu)
    return list(cores.values())


def _node(cpu: int) -> int:
    """Return the memory node of a CPU; 0 if unknown."""
    found = (path.name for path in Path(f"/sys/devices/system/cpu/cpu{cpu}").glob("node[0-9]*"))
    return int(next(found, "node0").removeprefix("node"))


def _cores() -> int:
    """Return the physical cores that this process may use, within its cgroup's quota."""
    cores = core_cpus()
    if not cores:
        return os.cpu_count() or 1
    quotas = [quota for folder in _cgroups("cpu") if (quota := _cgroup_cpus(folder)) is not None]
    return max(1, min([len(cores), *quotas]))


def _cgroup_cpus(folder: Path) -> int | None:
    """Return a cgroup's quota of CPU time in cores, rounded up; None without a quota."""
    older = [text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    quota, period = text(folder / "cpu.max").split() or older
    return -(-int(quota) // int(period)) if quota.isdigit() and period.isdigit() else None


def _cgroup_memory(folder: Path) -> tuple[int, int] | None:
    """Return (limit, free) bytes of a cgroup; None without a limit.

    Cached pages of files are free: the kernel evicts them first.
    """
    limits = [text(folder / f"memory.{name}") for name in ("max", "high", "limit_in_bytes")]
    used = text(folder / "memory.current") or text(folder / "memory.usage_in_bytes")
    limit = min((int(limit) for limit in limits if limit.isdigit()), default=None)
    if limit is None or not used.isdigit():
        return None
    pages = fields(text(folder / "memory.stat"))
    kinds = ("inactive_file", "active_file")
    cached = sum(pages.get(f"total_{kind}", pages.get(kind, 0)) for kind in kinds)
    return limit, max(0, limit - int(used) + cached)


def _cgroups(controller: str) -> list[Path]:
    """Return the folders of this process's cgroups, of version 1 or 2, with those around them.

    A container may see only its part of the tree, as the root.
    """
    root, found = Path("/sys/fs/cgroup"), []
    for line in text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, own = line.split(":", 2)
        base = root / controller if controllers else root
        if controller in controllers.split(",") or not controllers:
            inner = base / own.lstrip("/")
            found += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(base)]
    return found or [root]
