"""Faults of a system that this machine does not have, from its files to the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.explain.analyse import explain
from quire.explain.surroundings import between, read
from tests.unit.explain.made import healthy
from tests.unit.explain.made_faults import SLOW, UNBOUND
from tests.unit.explain.test_surroundings import write

SECONDS = 10.0
HEALTHY = {
    "sys/devices/system/cpu/online": "0-3",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2900000",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3000000",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=50",
    "proc/meminfo": "MemAvailable: 8000000 kB",
    "proc/vmstat": "pswpin 0\npswpout 0",
    "proc/7/task/7/children": "",
    "proc/7/task/7/status": "Cpus_allowed_list:\t0-3",
    "proc/7/status": "VmSwap:\t 0 kB",
    "proc/7/io": "read_bytes: 0",
}
CPU, NODE = "sys/devices/system/cpu", "sys/devices/system/node"
SYSTEMS: dict[str, tuple[dict[str, str], dict[str, str], dict[str, Any]]] = {
    "swapping": (
        {},
        {"proc/vmstat": "pswpin 400000\npswpout 100000", "proc/7/status": "VmSwap: 900000 kB"},
        {},
    ),
    "slow_clock": ({f"{CPU}/cpu0/cpufreq/scaling_cur_freq": "1200000"}, {}, {}),
    "remote_memory": (
        {
            f"{NODE}/node0/cpulist": "0-1",
            f"{NODE}/node1/cpulist": "2-3",
            "proc/7/task/7/status": "Cpus_allowed_list:\t0-1",
            "proc/7/numa_maps": "7f00 default anon=10 N0=1 N1=9",
            f"{CPU}/online": "0-1",
        },
        {},
        {},
    ),
    "affinity": (  # two hardware threads of one core, of two cores
        {
            "proc/7/task/7/status": "Cpus_allowed_list:\t0-1",
            f"{CPU}/cpu0/topology/thread_siblings_list": "0-1",
        },
        {},
        {},
    ),
    "huge_pages_off": (
        {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"},
        {},
        {},
    ),
    "memory_pressure": ({}, {"proc/pressure/memory": "some avg10=40.00 total=4000050"}, {}),
    "offload_reads": (
        {},
        {"proc/7/io": "read_bytes: 9000000000"},
        {"args": {"cpu_offload_gb": 0.1}, **SLOW},
    ),
}
"""By cause: files that differ, those that change in the window, and fields of `healthy`."""


@pytest.mark.parametrize("cause", [None, *SYSTEMS])
def test_a_fault_of_the_system_is_named(cause: str | None, tmp_path: Path) -> None:
    first, change, given = SYSTEMS[cause] if cause is not None else ({}, {}, {})
    write(tmp_path, HEALTHY | first)
    begin = read(7, tmp_path)
    write(tmp_path, change)
    around = between(begin, read(7, tmp_path), SECONDS, 0.0)
    evidence = healthy(ops=UNBOUND, **given)
    report = explain(msgspec.structs.replace(evidence, surroundings=around))
    assert [finding.cause for finding in report.causes] == [cause] * (cause is not None)
    assert bool(report.changes) is (cause is not None)
