"""What this machine offers: cores and memory, container limits counted in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hardware:
    """Cores this process may use, and bytes of memory in all and free now."""

    cores: int
    memory_bytes: int
    available_bytes: int


def detect() -> Hardware:
    """Read the machine; the smaller of the host's and the cgroup's memory limits holds."""
    meminfo = _meminfo()
    page_total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = meminfo.get("MemTotal", page_total)
    available = meminfo.get("MemAvailable", total)
    limit, used = _cgroup_memory()
    if limit is not None and limit < total:
        total, available = limit, min(available, max(0, limit - used))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Hardware(cores=cores or 1, memory_bytes=total, available_bytes=available)


def _meminfo() -> dict[str, int]:
    """`/proc/meminfo` in bytes; empty where there is none (macOS)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {f[0].rstrip(":"): int(f[1]) * 1024 for f in fields if len(f) == 3}


def _cgroup_memory() -> tuple[int | None, int]:
    """(limit, used) bytes of this process's cgroup v2; (None, 0) if it has no limit."""
    base = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].split(":")[-1]
        folder = base / own.lstrip("/")
        if not (folder / "memory.max").exists():
            folder = base
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError, IndexError):
        return None, 0
    return (None, 0) if limit == "max" else (int(limit), used)
