"""What the system gives an engine, read from a made /proc and /sys."""

from __future__ import annotations

import errno
import os
import resource
import socket
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from quire.explain.host import unread
from quire.explain.standing import StateCount
from quire.explain.surroundings import MUCH, Surroundings, between, read
from quire.system.proc import family

STAT = "7 (a (b) c) {state} 1 7 7 0 -1 0 " + "0 " * 32 + "{wait} 0"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root: Path, *, throttled: int = 0, swapped: int = 0, read_bytes: int = 0) -> None:
    """Two nodes of four CPUs each, two per core; process 7 with a child, 8, on node 0."""
    nodes = "sys/devices/system/node"
    write(
        root,
        {
            "sys/devices/system/cpu/online": "0-7\n",
            "sys/devices/system/cpu/cpu2/topology/thread_siblings_list": "2,6\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1500000\n",
            "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3000000\n",
            f"{nodes}/node0/cpulist": "0-3\n",
            f"{nodes}/node1/cpulist": "4-7\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/cpu.stat": f"usage_usec 9\nthrottled_usec {throttled}\n",
            "sys/fs/cgroup/pod/engine/cpu.max": "max 100000\n",
            "proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 50 kB\n",
            "proc/vmstat": f"pswpin {swapped}\npswpout 0\n",
        },
    )
    for pid, children in ((7, "8 "), (8, "")):
        write(
            root,
            {
                f"proc/{pid}/task/{pid}/children": children,
                f"proc/{pid}/task/{pid}/stat": STAT.format(state="S", wait=100 * (pid == 8)),
                f"proc/{pid}/stat": STAT.format(state="T" if pid == 8 else "S", wait=0),
                f"proc/{pid}/task/{pid}/status": "Cpus_allowed_list:\t2-3\n",
                f"proc/{pid}/status": "Cpus_allowed_list:\t2-3\nVmSwap:\t 4 kB\n",
                f"proc/{pid}/cgroup": "0::/pod/engine\n",
                f"proc/{pid}/io": f"read_bytes: {read_bytes}\n",
                f"proc/{pid}/numa_maps": "7f00 default anon=4 N0=1 N1=3\n",
            },
        )


def test_a_limit_of_the_older_cgroups(tmp_path: Path) -> None:
    machine(tmp_path)
    group = "sys/fs/cgroup/cpu/engine"
    write(
        tmp_path,
        {
            "proc/7/cgroup": "3:memory:/other\n2:cpu,cpuacct:/engine\n",
            f"{group}/cpu.cfs_quota_us": "50000\n",
            f"{group}/cpu.cfs_period_us": "100000\n",
            f"{group}/cpu.stat": "nr_throttled 9\nthrottled_time 2500000000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    reading = read(7, tmp_path)
    assert (reading.now.quota, reading.throttled) == (0.5, 2.5)


def test_stages_with_cpus_of_their_own_may_use_all_of_them(tmp_path: Path) -> None:
    """Seen: of two uneven stages only the busy one counted, and its affinity was the verdict."""
    machine(tmp_path)
    stage = "python\0-m\0quire.executor.rank"
    ticks = STAT.replace("0 0 0 0 0 0 0 0", "0 0 0 0 0 900 0 0", 1)
    for pid, cpus in ((7, "0-1"), (8, "2-3")):
        write(
            tmp_path,
            {
                f"proc/{pid}/cmdline": stage,
                f"proc/{pid}/task/{pid}/status": f"Cpus_allowed_list:\t{cpus}\n",
            },
        )
    write(tmp_path, {"proc/8/stat": ticks.format(state="R", wait=0)})
    assert read(7, tmp_path).now.allowed == 4


@pytest.mark.parametrize(("ticks", "allowed"), [(30, 1), (300, 4)])
def test_a_process_that_stands_by_counts_once_it_computes(
    tmp_path: Path, ticks: int, allowed: int
) -> None:
    """Seen: the core was held to one CPU, and the next one, which began then, was not."""
    machine(tmp_path)
    core = "python\0-m\0quire.engine.process\0/tmp/x\0007\0004"
    for pid, command, cpus, ran in ((7, core, "2", 900), (8, core + "\0stand-by", "0-3", ticks)):
        stat = STAT.replace("0 0 0 0 0 0 0 0", f"0 0 0 0 0 {ran} 0 0", 1).format(state="R", wait=0)
        write(
            tmp_path,
            {
                f"proc/{pid}/cmdline": command,
                f"proc/{pid}/stat": stat,
                f"proc/{pid}/task/{pid}/status": f"Cpus_allowed_list:\t{cpus}\n",
            },
        )
    assert read(7, tmp_path).now.allowed == allowed


def test_threads_that_hardly_run_do_not_count_as_affinity(tmp_path: Path) -> None:
    """Seen: both computing threads shared a CPU, and idle ones of the process might use all."""
    machine(tmp_path)
    for thread, cpus, ticks in ((8, "2", 900), (9, "2", 300), (10, "0-7", 2)):
        folder, ran = f"proc/8/task/{thread}", f"0 0 0 0 0 {ticks} 0 0"
        stat = STAT.replace("0 0 0 0 0 0 0 0", ran, 1).format(state="R", wait=0)
        write(tmp_path, {f"{folder}/status": f"Cpus_allowed_list:\t{cpus}\n"})
        write(tmp_path, {f"{folder}/stat": stat, f"{folder}/children": ""})
    write(tmp_path, {"proc/8/cmdline": "python\0-m\0quire.engine.process"})
    assert read(7, tmp_path).now.allowed == 1


def test_a_machine_is_read(tmp_path: Path) -> None:
    machine(tmp_path)
    first = read(7, tmp_path)
    machine(tmp_path, throttled=3_000_000, swapped=2, read_bytes=500)
    page = os.sysconf("SC_PAGE_SIZE")
    assert between(first, read(7, tmp_path), 2.0, 0.25) == Surroundings(
        online=8,
        allowed=2,
        narrowest=2,
        siblings=2,
        quota=1.5,
        throttled=3.0,
        stopped=0.25,
        swapped=8 * 1024,
        swap_rate=page,
        read_rate=500.0,
        disk_wait=0.0,
        clock=0.5,
        huge_pages="never",
        remote=0.75,
        nodes=2,
        free=50 * 1024,
    )


def test_a_process_and_its_children_are_seen_stopped(tmp_path: Path) -> None:
    machine(tmp_path)
    assert family(7, tmp_path) == [7, 8]
    count, both = (StateCount(pids, tmp_path) for pids in ((7,), (7, 8)))
    count.sample()
    assert count.share == 0.0
    both.sample()
    write(tmp_path, {"proc/8/stat": STAT.format(state="R", wait=0)})
    both.sample()
    assert (both.share, both.most, count.most) == (0.5, 8, 0)


@pytest.mark.parametrize(
    ("group", "file", "state"),
    [
        ("4:freezer:/pod\n0::/pod/engine\n", "freezer/pod/freezer.state", "FROZEN"),
        ("0::/pod/engine\n", "pod/engine/cgroup.events", "populated 1\nfrozen 1"),
    ],
)
def test_the_freezer_stops_processes_too(group: str, file: str, state: str, tmp_path: Path) -> None:
    machine(tmp_path)
    path = f"sys/fs/cgroup/{file}"
    write(tmp_path, {"proc/7/cgroup": group, path: "THAWED"})
    count = StateCount((7,), tmp_path)
    for now in ("frozen 0", state, "THAWED", state):
        write(tmp_path, {path: now})
        count.sample()
    assert (count.share, count.most) == (0.5, 7)


def test_a_child_alone_may_be_limited_traced_or_pinned(tmp_path: Path) -> None:
    """The core computes; the API process around it has the usual rights."""
    machine(tmp_path)
    idle = "8 (x) S 7 7 7 0 -1 0 " + "0 " * 31 + "5 0"
    write(
        tmp_path,
        {
            "proc/8/cgroup": "2:cpu:/core\n0::/pod/engine\n",
            "proc/8/stat": idle,
            "proc/8/status": "TracerPid:\t99\n",
            "proc/8/task/8/status": "Cpus_allowed_list:\t3\n",
            "sys/fs/cgroup/cpu/core/cpu.cfs_quota_us": "40000",
            "sys/fs/cgroup/cpu/core/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/core/cpu.shares": "64",
        },
    )
    now = read(7, tmp_path).now
    assert (now.quota, now.weight, now.policy) == (0.4, 64 / 1024, "idle")
    assert (now.tracer, now.allowed) == (99, 1)


def test_answers_are_unread_if_both_readings_say_so(tmp_path: Path) -> None:
    machine(tmp_path)
    reading = read(7, tmp_path)
    now = msgspec.structs.replace(reading.now, unread=3, connections=4)
    first, last = replace(reading, now=now), reading
    assert between(first, first, 5.0, 0.0).unread == 3
    assert between(first, last, 5.0, 0.0).unread == between(last, first, 5.0, 0.0).unread == 0


def test_time_that_threads_waited_for_disks(tmp_path: Path) -> None:
    machine(tmp_path)
    first = read(7, tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    write(tmp_path, {"proc/8/task/8/stat": STAT.format(state="D", wait=100 + 3 * ticks)})
    assert between(first, read(7, tmp_path), 5.0, 0.0).disk_wait == pytest.approx(3.0)


def test_a_low_priority_many_files_and_pressure_on_memory(tmp_path: Path) -> None:
    machine(tmp_path)
    group = "sys/fs/cgroup/pod/engine/memory.pressure"
    write(tmp_path, {group: "some avg10=0.00 total=1000000\nfull avg10=0.00 total=7\n"})
    first = read(7, tmp_path)
    files = {f"proc/8/fd/{n}": "" for n in range(9)}
    limit = "Limit  Soft Limit  Hard Limit  Units\nMax open files  10  20  files\n"
    nice = "8 (x) S 7 7 7 0 -1 0 " + "0 " * 8 + "29 10 1 0"
    write(tmp_path, files | {"proc/8/limits": limit, "proc/8/stat": nice})
    write(tmp_path, {group: "some avg10=9.00 total=3500000\nfull avg10=0.00 total=7\n"})
    write(tmp_path, {"proc/8/status": "Cpus_allowed_list:\t2-3\nTHP_enabled:\t0\n"})
    around = between(first, read(7, tmp_path), 5.0, 0.0)
    assert (around.open_files, around.most_files) == (9, 10)
    assert (around.nice, around.memory_wait, around.huge_pages) == (10, 2.5, "refused")


def test_a_process_without_a_file_left_has_them_all_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", full)
    now = read(7, tmp_path).now
    assert now.open_files == now.most_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_system_without_proc_gives_nothing(tmp_path: Path) -> None:
    reading = read(7, tmp_path)
    assert between(reading, reading, 1.0, 0.0) == Surroundings()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_this_system() -> None:
    now = read().now
    assert now.allowed == len(os.sched_getaffinity(0))
    assert now.online >= now.allowed


def test_own_connections_hold_what_their_clients_have_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
            client.connect(server.getsockname())
            with server.accept()[0] as connection:
                connection.setblocking(False)
                sent = connection.send(bytes(1 << 18))
                found = max(unread())  # other tests' connections may be closing
                rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
                assert found in {int(row.split()[4].partition(":")[0], 16) for row in rows}
                assert MUCH < found <= sent
