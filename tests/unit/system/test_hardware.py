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
