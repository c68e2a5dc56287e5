"""Limits and the use of the cores."""

from __future__ import annotations

import dataclasses
import errno
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from quire.bench.kernels import limits
from quire.explain.host import (
    HostReading,
    Pauses,
    _neighbours,
    _scheduled,
    _Thread,
    peers,
    read_host,
    sockets,
    use_between,
)
from quire.explain.limits import ATTENTION_SHARE, Limits, load_limits, profile_of, save_limits
from quire.models.cost import roofline
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import cpu_name, detect
from tests.unit.explain.made import LIMITS


def test_limits_between_the_measured_ones() -> None:
    assert LIMITS.bandwidth_of(1) == 15e9
    assert LIMITS.bandwidth_of(4) == LIMITS.bandwidth_of(9) == 40e9
    assert 15e9 < LIMITS.bandwidth_of(2) < LIMITS.bandwidth_of(3) < 40e9
    assert LIMITS.flops_of("int8", 2) == pytest.approx(1600e9)
    assert LIMITS.flops_of("float16", 4) == 800e9  # was not measured


def test_attention_has_a_rate_of_its_own_where_it_was_measured() -> None:
    args = EngineArgs(model="qwen3-0.6b", load_format="dummy", dtype="bfloat16", num_threads=4)
    config = resolve(args, detect()).config
    guessed = roofline(config, profile_of(LIMITS, 4))
    measured = roofline(
        config, profile_of(msgspec.structs.replace(LIMITS, attention={1: 2e9, 4: 5e9}), 4)
    )
    peak = LIMITS.flops_of("bfloat16", 4)
    assert guessed.attention_flops_per_second == pytest.approx(ATTENTION_SHARE * peak)
    assert measured.attention_flops_per_second == 5e9
    assert measured.flops_per_second == guessed.flops_per_second
    assert not msgspec.structs.replace(LIMITS, attention={4: 0.0}).usable


def test_a_pause_is_time_that_was_due_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter([1.0, 1.3, 1.3, 1.3, 1.3])
    monkeypatch.setattr(Pauses, "_count", staticmethod(lambda: next(counted)))
    pauses = Pauses()
    pauses.add(0.35, 0.05)  # ran, or waited for a CPU, when it was due
    pauses.add(0.06, 0.05)  # a timer is never exact
    pauses.add(9.0, None)  # nothing was due
    assert pauses.seconds == 0.0
    pauses.add(0.35, 0.05)
    assert pauses.seconds == pytest.approx(0.3)


def test_pauses_are_counted_without_a_file_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a server at its limit of open files answered 500."""

    def full(*_: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    pauses = Pauses()
    monkeypatch.setattr(Path, "read_text", full)
    pauses.add(0.05, 0.05)
    assert pauses.seconds == 0.0


def test_limits_are_kept_for_the_machine_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "new"))
    assert load_limits(4) is None
    mine = Limits(cpu_name(), 4, LIMITS.bandwidth, LIMITS.flops)
    save_limits(mine)
    assert load_limits(4) == mine
    assert load_limits(8) is None
    save_limits(LIMITS)
    assert load_limits(4) is None
    (tmp_path / "new" / "limits.json").write_text("{")
    assert load_limits(4) is None


def test_limits_of_a_busy_machine_are_marked_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    cores = detect().cores
    busy, calm, idle = (
        Limits(cpu_name(), cores, LIMITS.bandwidth, LIMITS.flops, share * cores, reads=LIMITS.flops)
        for share in (0.9, 0.5, 0.05)
    )
    coming = iter([busy, calm, busy, idle])
    monkeypatch.setattr(limits, "measured", lambda: next(coming))
    assert limits.known_or_measured() == calm  # of two that were both disturbed
    assert load_limits(cores) == calm
    assert "other processes used" in capsys.readouterr().err
    assert limits.known_or_measured() == idle
    assert limits.known_or_measured() == idle
    monkeypatch.setenv("QUIRE_CACHE_DIR", "/dev/null/nowhere")
    monkeypatch.setattr(limits, "measured", lambda: idle)
    assert limits.known_or_measured() == idle
    assert "QUIRE_CACHE_DIR" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="needs /proc")
def test_the_cores_are_watched() -> None:
    first = read_host()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    use = use_between(first, read_host())
    assert use.own >= 0.03
    assert use.cpus == os.cpu_count()
    assert use.waited >= 0.0
    assert use_between(first, None) is None


def test_neighbours_have_names_and_clients_are_known() -> None:
    """A child that computes beside this process, and is connected to it."""
    spin = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    spin += "s.send(b'x')\nwhile True: pass"
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", spin, str(server.getsockname()[1])]
        # A child would be a part of the engine: let a shell start it, and end.
        shell = f"{shlex.join(command)} >/dev/null 2>&1 & echo $!"
        pid = int(subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout)
        try:
            with server.accept()[0] as connection:
                assert connection.recv(1) == b"x"
                first = read_host()
                assert pid in first.others
                own = set(sockets(pid))
                assert peers([os.getpid()]) >= own > set()
                assert not own & peers([pid])
            used = {pid: first.others[pid] + 1.0, -1: 0.05}
            last = dataclasses.replace(first, moment=first.moment + 2.0, others=used)
            [seen] = _neighbours(first, last, 2.0)
        finally:
            os.kill(pid, signal.SIGKILL)
    assert seen.name.startswith("python")
    assert (seen.pid, seen.cpus) == (pid, pytest.approx(0.5))


def test_processes_that_come_and_go() -> None:
    first = HostReading(0.0, 10.0, 0.0, {1: 5.0, 2: 3.0}, {(1, 1): _Thread(0.0, 1.0)}, {})
    ran = {(1, 1): _Thread(0.5, 1.25), (3, 3): _Thread(1.5, 0.25)}
    last = HostReading(2.0, 13.0, 0.5, {1: 6.0, 3: 0.5}, ran, {})
    use = use_between(first, last)
    assert (use.waits, use.loop_waited) == ([0.25], 0.25)  # process 1 holds the event loop
    assert (use.own, use.waited, use.busy, use.steal) == (1.5, 0.5, 3.0, 0.5)
    assert use.others == pytest.approx(0.75)


def test_a_thread_that_has_exited_has_no_times(tmp_path: Path) -> None:
    """Zeros would take back what it had waited before."""
    with pytest.raises(ProcessLookupError):
        _scheduled(tmp_path / "7")
    (tmp_path / "8").mkdir()
    assert _scheduled(tmp_path / "8") == _Thread(0.0, 0.0)  # of a kernel that counts none
    (tmp_path / "8" / "schedstat").write_text("2000000000 500000000 3\n")
    assert _scheduled(tmp_path / "8") == _Thread(2.0, 0.5)
