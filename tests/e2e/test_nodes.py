"""A server of two machines, here two groups of processes, whose other machine fails."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from quire.system.hardware import detect
from tests.e2e.serving import QUIRE, Server, serving, until
from tests.e2e.tiny_model import write_tiny_model
from tests.faults.test_processes import LONG, Stream, healthy
from tests.faults.test_ranks import ranks
from tests.ports import free_port
from tests.unit.executor.test_nodes import KEY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(detect().cores < 2, reason="every stage needs a core of its own"),
]

Machines = tuple[Server, psutil.Process]
LATE = 30.0


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The server, and the other machine's process."""
    folder = tmp_path_factory.mktemp("models") / "long"
    write_tiny_model(folder, max_position_embeddings=LONG + 192)
    flags = ["--num-gpu-blocks-override", "2048", "--step-timeout", "5", "--nnodes", "2"]
    flags += ["--pipeline-parallel-size", "2", "--master-port", str(free_port())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIRE_CLUSTER_KEY", KEY)
        command = [*QUIRE, "serve", str(folder), *flags, "--headless", "--node-rank", "1"]
        other = subprocess.Popen(command)
        try:
            with serving(folder, *flags) as server:
                yield server, psutil.Process(other.pid)
            assert other.wait(LATE) == 0  # it hears that node 0 is stopped
        finally:
            other.kill()
            other.wait()


@pytest.mark.parametrize("stopped", [False, True])
def test_another_machines_worker_ends_or_is_stopped(machines: Machines, *, stopped: bool) -> None:
    """A stream gets an error event; then the answers are as before, from another worker."""
    server, other = machines
    canary = server.text()
    [worker] = ranks(other)
    stream = Stream(server)
    if stopped:
        worker.suspend()
    else:
        worker.kill()
    assert stream.error()["code"] == "engine_restarting"
    until(lambda: healthy(server))
    assert server.text() == canary
    [successor] = ranks(other)
    assert successor.pid != worker.pid


@pytest.mark.parametrize("stopped", ["SIGTERM of node 0", "SIGINT of node 1"])
def test_machines_that_wait_for_a_third_end_calmly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    """Node 1 ends with node 0. Node 0 awaits another node 1."""
    monkeypatch.setenv("QUIRE_CLUSTER_KEY", KEY)
    flags = ["--num-gpu-blocks-override", "64", "--num-threads", "1", "--nnodes", "3"]
    flags += ["--pipeline-parallel-size", "3", "--master-port", str(free_port())]
    model = write_tiny_model(tmp_path / "model", num_hidden_layers=3)
    log, found = tmp_path / "log", []
    with log.open("wb") as out:
        for more in (["--port", "0"], ["--headless", "--node-rank", "1"]):
            command = [*QUIRE, "serve", str(model), *flags, *more]
            found.append(subprocess.Popen(command, stderr=out, start_new_session=True))
    first, other = found
    try:
        until(lambda: "node 1 has joined" in log.read_text())
        if stopped == "SIGINT of node 1":
            other.send_signal(signal.SIGINT)
            assert other.wait(LATE) == 0
            assert first.poll() is None
        first.terminate()
        assert [process.wait(LATE) for process in found] == [0, 0]
    finally:
        for process in found:
            process.kill()
            process.wait()
    assert "Traceback" not in log.read_text()
    groups = {process.pid for process in found}
    until(lambda: not [p for p in psutil.pids() if group_of(p) in groups])


def group_of(process: int) -> int:
    """Return the process's group; 0 if it has gone."""
    with suppress(ProcessLookupError):
        return os.getpgid(process)
    return 0
