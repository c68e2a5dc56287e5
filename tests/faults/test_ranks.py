"""Row 40: a killed or stopped process of a tensor-parallel group. 42 and 44 with such a group."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from quire.system.hardware import detect
from tests.e2e.serving import QUIRE, Server, serving, until
from tests.e2e.tiny_model import write_tiny_model
from tests.faults.test_processes import (
    LONG,
    PATIENCE,
    Stream,
    children,
    core,
    healthy,
    no_next_core,
)

pytestmark = pytest.mark.skipif(detect().cores < 2, reason="every rank needs a core of its own")
RANK = "quire.executor.rank"
TP2 = ("--tensor-parallel-size", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "long"
    return write_tiny_model(folder, max_position_embeddings=LONG + 192)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    flags = ("--num-gpu-blocks-override", "2048", "--step-timeout", "5")
    with serving(model, *flags, *TP2) as running:
        yield running


def ranks(parent: psutil.Process) -> list[psutil.Process]:
    """The processes of the ranks that are not in the core's."""
    found = []
    for process in parent.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if RANK in process.cmdline():
                found.append(process)
    return found


def rank(server: Server) -> psutil.Process:
    (found,) = ranks(psutil.Process(server.process.pid))
    return found


def assert_other_group(server: Server, killed: list[psutil.Process]) -> None:
    """All of a group's processes are gone, and others have taken their place."""
    assert psutil.wait_procs(killed, timeout=PATIENCE)[1] == []
    assert {core(server).pid, rank(server).pid}.isdisjoint(p.pid for p in killed)


@pytest.mark.usefixtures("unharmed")
def test_row_40_sigkill_of_a_rank(server: Server) -> None:
    """The group restarts: a stream gets an error event, and what was told nothing the tokens that
    it would have got."""
    fields = {"prompt": "b", "max_tokens": 200, "ignore_eos": True, "seed": 1, "temperature": 1}
    alone = server.text(**fields)
    group = [core(server), rank(server)]
    stream = Stream(server)
    with ThreadPoolExecutor(1) as pool:
        group[0].suspend()
        retried = pool.submit(server.text, **fields)
        until(lambda: server.http.get("/load").json()["server_load"] == 2)
        with no_next_core(server):
            group[1].kill()
            group[0].resume()
            until(lambda: not healthy(server))
            refused = server.complete()
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "engine_restarting"
        until(lambda: healthy(server))
        assert retried.result() == alone
    assert stream.error()["code"] == "engine_restarting"
    assert_other_group(server, group)


@pytest.mark.usefixtures("unharmed")
def test_row_40_sigkill_of_a_rank_that_idles(server: Server) -> None:
    group = [core(server), rank(server)]
    with no_next_core(server):
        group[1].kill()
        until(lambda: not healthy(server))
    until(lambda: healthy(server))
    assert_other_group(server, group)


@pytest.mark.usefixtures("unharmed")
def test_row_40_sigstop_of_a_rank(server: Server) -> None:
    """The watchdog replaces the group; the process that was stopped is gone, too."""
    group = [core(server), rank(server)]
    stream = Stream(server)
    group[1].suspend()
    assert stream.error()["code"] == "engine_restarting"
    until(lambda: healthy(server))
    assert_other_group(server, group)
    assert "no step has ended for 5 s" in server.log.read_text()


def test_row_44_sigterm_while_a_group_loads(model: Path) -> None:
    few = ("--num-gpu-blocks-override", "64")
    command = [*QUIRE, "serve", str(model), "--port", "0", *TP2, *few]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    loading = psutil.Process(process.pid)
    until(lambda: ranks(loading))
    left = loading.children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert b"Traceback" not in err
    assert psutil.wait_procs(left, timeout=PATIENCE)[1] == []


def test_row_42_the_api_process_dies(server: Server) -> None:
    """The last test of this file: it leaves no server."""
    left = children(server)
    assert rank(server) in left
    server.process.kill()
    server.process.wait()
    assert psutil.wait_procs(left, timeout=PATIENCE)[1] == []


def test_sharing_that_cannot_be_is_refused_before_anything_starts(model: Path) -> None:
    pytest.importorskip("torch")
    command = [*QUIRE, "serve", str(model), "--port", "0", "-pp", "2", "--ops", "reference"]
    refused = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    assert refused.returncode == 2
    line = refused.stderr.decode().strip()
    assert "pipeline_parallel_size is 2; the reference ops work with one stage only." in line
    assert json.dumps(line).count("\\n") == 0
