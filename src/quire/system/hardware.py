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
    limit, used = _cgroup_memory()
    if limit is not None and limit < total:
        total, available = limit, min(available, max(0, limit - used))
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
    quota, _, period = text(_cgroup("cpu.max")).partition(" ")
    if quota.isdigit() and period.isdigit():
        return max(1, min(len(cores), -(-int(quota) // int(period))))
    return len(cores)


def _cgroup_memory() -> tuple[int | None, int]:
    """Return (limit, used) bytes of this process's cgroup v2; (None, 0) without a limit."""
    limit, used = text(_cgroup("memory.max")), text(_cgroup("memory.current"))
    if not (limit.isdigit() and used.isdigit()):
        return None, 0
    return int(limit), int(used)


def _cgroup(name: str) -> Path:
    """Return a file of this process's cgroup v2, or the root's file.

    A container may see only its part of the tree, as the root.
    """
    base = Path("/sys/fs/cgroup")
    own = text(Path("/proc/self/cgroup")).rpartition("\n")[2].rpartition(":")[2]
    file = base / own.lstrip("/") / name
    return file if file.exists() else base / name
