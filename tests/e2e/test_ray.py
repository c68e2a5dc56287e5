"""A pipeline over the machines of a Ray cluster, here three groups of processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.serving import QUIRE, Server, serving, until
from tests.e2e.test_machines import tiny_answers, write_golden
from tests.e2e.tiny_model import write_tiny_model
from tests.faults.test_processes import LONG, Stream, healthy
from tests.golden.tiny_models import RECURRENT_MODELS, TINY_MODELS
from tests.ports import free_port

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs quire[ray]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # Ray's own
]
ON_RAY = ("--pipeline-parallel-size", "2", "--distributed-executor-backend", "ray")
BLOCKS = ("--num-gpu-blocks-override", "2048", "--num-threads", "1")
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three machines of one CPU each. `serve` runs on the first."""
    found = cluster_utils.Cluster(initialize_head=True, head_node_args=NODE)
    try:
        for _ in range(2):
            found.add_node(**NODE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_ADDRESS", found.address)
            yield found
    finally:
        found.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "long"
    return write_tiny_model(folder, max_position_embeddings=LONG + 192)


@pytest.fixture(scope="module")
def server(cluster: Any, model: Path) -> Iterator[Server]:
    with serving(model, *BLOCKS, *ON_RAY, "--step-timeout", "5") as running:
        yield running


@pytest.fixture(scope="module")
def expected(model: Path) -> str:
    """What one process answers."""
    with serving(model, *BLOCKS) as alone:
        return alone.text()


def far_worker(cluster: Any) -> tuple[Any, psutil.Process]:
    """The Ray node with a worker of the engine, and that worker."""
    for node in cluster.list_all_nodes():
        raylet = node.all_processes["raylet"][0].process
        for process in psutil.Process(raylet.pid).children(recursive=True):
            if "quire.executor.rank" in " ".join(process.cmdline()):
                return node, process
    raise AssertionError("no machine has a worker")


def test_two_machines_give_the_text_of_one_process(server: Server, expected: str) -> None:
    assert server.text() == expected


@pytest.mark.parametrize("name", TINY_MODELS | RECURRENT_MODELS)
def test_each_architecture(cluster: Any, name: str, tmp_path: Path) -> None:
    """A stage on each of two machines."""
    write_golden(name, tmp_path)
    on_ray = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    two = tiny_answers(tmp_path, **on_ray, master_port=free_port())
    assert two == tiny_answers(tmp_path)


@pytest.mark.parametrize("lost", ["worker", "machine"])
def test_another_takes_the_place_of_what_was_lost(
    cluster: Any, server: Server, expected: str, lost: str
) -> None:
    """A stream gets an error event. Then the answers are as before."""
    node, worker = far_worker(cluster)
    stream = Stream(server)
    if lost == "worker":
        os.kill(worker.pid, signal.SIGKILL)
    else:
        cluster.remove_node(node, allow_graceful=False)
    assert stream.error()["code"] == "engine_restarting"
    until(lambda: healthy(server))
    assert server.text() == expected


@pytest.fixture(scope="module")
def replicas(cluster: Any, model: Path) -> Iterator[Server]:
    """On two further machines: the pipeline may still have the others."""
    for _ in range(2):
        cluster.add_node(**NODE)
    flags = ("--data-parallel-size", "2", "--data-parallel-backend", "ray")
    with serving(model, *BLOCKS, *flags, "--step-timeout", "5") as running:
        yield running


def cores() -> list[psutil.Process]:
    """The engine cores that Ray's actors have started."""
    every = psutil.process_iter(["cmdline"])
    return [one for one in every if "quire.frontend.far.lent" in (one.info["cmdline"] or [])]


def test_replicas_on_ray_give_the_text_of_one_process(replicas: Server, expected: str) -> None:
    assert len({core.ppid() for core in cores()}) == 2
    for rank in "01":
        body = {"model": "tiny", "prompt": "once upon", "max_tokens": 8, "temperature": 0}
        headers = {"X-data-parallel-rank": rank}
        answer = replicas.http.post("/v1/completions", json=body, headers=headers)
        assert answer.json()["choices"][0]["text"] == expected


@pytest.mark.parametrize("stopped", [False, True])
def test_another_core_takes_the_place_of_one(
    replicas: Server, expected: str, *, stopped: bool
) -> None:
    """The stream of a killed or stopped core goes on at the other replica."""
    fields = {"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
    before, alone = cores(), replicas.text(**fields)
    spent = {core: core.cpu_times().user for core in before}
    stream = Stream(replicas, **fields)

    def computes(core: psutil.Process) -> bool:
        return core.cpu_times().user > spent[core] + 0.05

    until(lambda: any(map(computes, before)))
    busy = next(filter(computes, before))
    if stopped:
        busy.suspend()
    else:
        busy.kill()
    assert stream.text() == alone
    assert replicas.text() == expected
    until(lambda: healthy(replicas))
    until(lambda: not busy.is_running() and len(cores()) == 2)
    assert replicas.text() == expected


def test_missing_machines_are_explained(cluster: Any, model: Path) -> None:
    """What is needed, and what each machine has."""
    command = [*QUIRE, "serve", str(model), *ON_RAY[2:], "-pp", "2", "--nnodes", "2"]
    command += ["--tensor-parallel-size", "2", "--master-port", str(free_port())]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        line = next(line for line in process.stderr if "waiting for machines" in line)
        process.terminate()
        process.communicate(timeout=60)
    assert "2 machines with 2 free CPUs each are needed" in line
    assert "of 1 CPUs free, this machine)" in line
