"""What the machine is said to offer."""

from __future__ import annotations

import os
import platform

import pytest

from quire.system import hardware

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files of a machine with eight CPUs, nothing in them yet."""
    contents: dict[str, str] = {}
    monkeypatch.setattr(hardware, "text", lambda path: contents.get(str(path), ""))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return contents


def test_cpus_without_topology_are_cores(files: dict[str, str]) -> None:
    assert hardware.detect().cores == 8


def test_hardware_threads_of_a_core_count_once(files: dict[str, str]) -> None:
    files |= {SIBLINGS.format(cpu): f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    assert hardware.detect().cores == 4


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 3), ("5000 100000", 1)],
)
def test_a_container_gets_its_quota(files: dict[str, str], quota: str, cores: int) -> None:
    files["/sys/fs/cgroup/cpu.max"] = quota
    assert hardware.detect().cores == cores


def test_the_smaller_memory_limit_holds(files: dict[str, str]) -> None:
    whole = hardware.detect()
    files["/sys/fs/cgroup/memory.max"] = str(2**30)
    files["/sys/fs/cgroup/memory.current"] = str(2**29)
    limited = hardware.detect()
    assert limited.memory_bytes == 2**30 < whole.memory_bytes
    assert limited.available_bytes <= 2**29


@pytest.mark.parametrize(
    ("own", "limits", "free"),
    [
        # Version 2: a container in a pod with a limit.
        ("0::/pod/a:b:one", {"/pod/memory.max": 4, "/pod/memory.current": 1}, 3),
        ("0::/one", {"/one/memory.max": 8, "/one/memory.high": 4, "/one/memory.current": 1}, 3),
        # The smallest free part of all, of whichever group.
        (
            "0::/pod/one",
            {"/pod/memory.max": 6, "/pod/memory.current": 5}
            | {"/pod/one/memory.max": 4, "/pod/one/memory.current": 1},
            1,
        ),
        # A container that sees its part as the root.
        ("0::/../../pod/one", {"/memory.max": 4, "/memory.current": 1}, 3),
        # Version 1, whose lines come in any order.
        (
            "5:memory:/pod/one\n1:name=systemd:/\n0::/",
            {"/memory/pod/memory.limit_in_bytes": 4, "/memory/pod/memory.usage_in_bytes": 1},
            3,
        ),
    ],
    ids=["pod", "high", "both", "root", "version 1"],
)
def test_memory_limits_of_all_cgroups_hold(
    files: dict[str, str], own: str, limits: dict[str, int], free: int
) -> None:
    files |= {f"/sys/fs/cgroup{name}": str(size << 27) for name, size in limits.items()}
    files |= {"/proc/self/cgroup": own, "/proc/meminfo": f"MemTotal: {1 << 30} kB"}
    found = hardware.detect()
    assert found.available_bytes == free << 27
    assert found.memory_bytes == min(v for k, v in limits.items() if v > free) << 27


@pytest.mark.parametrize("prefix", ["", "total_"])
def test_cached_files_are_free_memory(files: dict[str, str], prefix: str) -> None:
    """A container that has just downloaded its model has filled its limit with them."""
    older = bool(prefix)
    group = "/sys/fs/cgroup/memory/" if older else "/sys/fs/cgroup/"
    files |= {"/proc/self/cgroup": "5:memory:/\n0::/", "/proc/meminfo": f"MemTotal: {1 << 30} kB"}
    files[group + ("memory.limit_in_bytes" if older else "memory.max")] = str(4 << 30)
    files[group + ("memory.usage_in_bytes" if older else "memory.current")] = str(4 << 30)
    pages = {"inactive_file": 2 << 30, "active_file": 1 << 30, "anon": 1 << 30}
    files[group + "memory.stat"] = "\n".join(f"{prefix}{k} {v}" for k, v in pages.items())
    assert hardware.detect().available_bytes == 3 << 30


def test_a_quota_of_version_1(files: dict[str, str]) -> None:
    files |= {
        "/proc/self/cgroup": "2:cpuacct,cpu:/pod/one",
        "/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "250000",
        "/sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000",
        "/sys/fs/cgroup/cpu/pod/one/cpu.cfs_quota_us": "-1",
        "/sys/fs/cgroup/cpu/pod/one/cpu.cfs_period_us": "100000",
    }
    assert hardware.detect().cores == 3


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ("model name\t: AMD EPYC\nflags\t: avx2", "AMD EPYC"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd40", "Arm Neoverse V1"),
        ("CPU implementer\t: 0x61\nCPU part\t: 0xd40", "its type"),  # another maker's number
        ("", "its type"),
    ],
)
def test_a_processor_has_a_name(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, facts: str, name: str
) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "its type")
    files["/proc/cpuinfo"] = f"processor\t: 0\n{facts}\n\nprocessor\t: 1\nmodel name\t: other"
    assert hardware.cpu_name() == name


def test_this_machine() -> None:
    found = hardware.detect()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert 0 < found.available_bytes <= found.memory_bytes
