"""A server of two machines, here two groups of processes, whose other machine fails."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

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
