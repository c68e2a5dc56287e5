"""How fast a server of three machines answers again after a loss, and refuses a wrong machine.

    python benchmarks/cluster_faults.py [--ray] [--repetitions 3] [--json FILE.jsonl]

The machines are groups of processes on the loopback, each with a stage of the embedded model. In
each repetition a new server loses a worker of the last machine (`worker_s`), then the whole machine
of the middle, which is started again at once as a service would (`machine_s`). Both times end with
the same text as before; requests without output wait meanwhile, and a stream that has begun must
end with an error event. Then node 0 gets SIGTERM, and all machines must end with status 0
(`stop_s`). A machine with another key, version or model joins another server that waits for one:
`key_s`, `version_s` and `model_s` are the times from its connection to its end. It must name what
differs.

With `--ray` the machines are those of a local Ray cluster, two with a stage each and a spare one.
`machine_s` is then the time after all processes of the far machine were killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, summarise, write_json

KEY = "a key of the benchmarks"
MACHINES, PATIENCE = 3, 120.0
LOST = ("worker_s", "machine_s")
WRONG = {
    "key": ("another key", {"QUIRE_CLUSTER_KEY": KEY + "!"}, "pass", ()),
    "version": ("has Quire 0.0", {}, "quire.__version__ = '0.0'", ()),
    "model": ("has another model", {}, "pass", ("--hf-overrides", '{"rope_theta": 5000.0}')),
}
"""What a machine must say, its environment, its first line of Python, and its further flags."""
BODY = {"model": "embedded", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}


class Servers:
    """The processes of the machines; all end with the context."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._log = folder / "log"
        self._all: list[subprocess.Popen[bytes]] = []
        self._nodes = nodes
        ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self._port, self._master = (port.getsockname()[1] for port in ports)
        for port in ports:
            port.close()
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
            process.wait()

    def start_on_ray(self, address: str) -> None:
        """Start a server whose second stage is on a machine of Ray's choice."""
        flags = ["--pipeline-parallel-size", "2", "--distributed-executor-backend", "ray"]
        flags += ["--num-threads", "1", "--num-gpu-blocks-override", "256"]
        code = "from quire.cli.main import main; main()"
        command = [sys.executable, "-c", code, "serve", "embedded", *flags]
        given = os.environ | {"RAY_ADDRESS": address}
        with self.log(0).open("wb") as log:
            command += ["--port", str(self._port)]
            self._all.append(subprocess.Popen(command, env=given, stdout=log, stderr=log))

    def start(
        self, node: int, first: str = "pass", env: dict[str, str] | None = None, *more: str
    ) -> subprocess.Popen[bytes]:
        """Start a machine; its log is `log`."""
        flags = ["--nnodes", str(self._nodes), "--pipeline-parallel-size", str(self._nodes)]
        flags += ["--master-port", str(self._master), "--num-threads", "1"]
        flags += ["--num-gpu-blocks-override", "256", *more]
        flags += ["--headless", "--node-rank", str(node)] if node else ["--port", str(self._port)]
        code = f"import quire; {first}; from quire.cli.main import main; main()"
        command = [sys.executable, "-c", code, "serve", "embedded", *flags]
        given = os.environ | {"QUIRE_CLUSTER_KEY": KEY} | (env or {})
        log = self.log(node).open("wb")
        process = subprocess.Popen(command, env=given, stdout=log, stderr=log)
        self._all.append(process)
        return process

    def log(self, node: int) -> Path:
        return self._log.with_suffix(f".{node}")

    def text(self) -> str:
        """Return a greedy text; the request waits while a core starts again."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                answer = httpx.post(f"{self.url}/v1/completions", json=BODY, timeout=PATIENCE)
                if answer.status_code == httpx.codes.OK:
                    return str(answer.json()["choices"][0]["text"])
            except httpx.TransportError:  # it starts
                pass
            time.sleep(0.02)
        raise TimeoutError(f"no text after {PATIENCE:.0f} s: {self.log(0).read_text()[-2000:]}")

    def wait_until_listening(self) -> None:
        """Wait until node 0 waits for the others."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self._master)).close()
                return
            time.sleep(0.02)
        raise TimeoutError(f"node 0 does not listen: {self.log(0).read_text()[-2000:]}")

    def stream(self) -> Callable[[], bool]:
        """Begin a stream; the result waits for its end, and returns whether that is an error."""
        lines: list[str] = []
        begun = threading.Event()

        def read() -> None:
            body = BODY | {"stream": True, "max_tokens": 900, "ignore_eos": True}
            path = f"{self.url}/v1/completions"
            with httpx.stream("POST", path, json=body, timeout=PATIENCE) as answer:
                for line in answer.iter_lines():
                    lines.append(line)
                    begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        begun.wait(PATIENCE)

        def failed() -> bool:
            thread.join()
            return any('"error"' in line for line in lines)

        return failed


def recovery(folder: Path) -> dict[str, float]:
    """Return the seconds until a server answers as before, after two losses, and until all end."""
    found = {}
    with Servers(folder, MACHINES) as servers:
        machines = [servers.start(node) for node in range(MACHINES)]
        expected = servers.text()
        for name in LOST:
            failed, node = servers.stream(), 2 if name == "worker_s" else 1
            own = psutil.Process(machines[node].pid).children(recursive=True)
            began = time.monotonic()
            for process in own if name == "machine_s" else own[:1]:
                process.send_signal(signal.SIGKILL)
            if name == "machine_s":
                machines[node].kill()
                machines[node].wait()
                machines[node] = servers.start(node)
            if servers.text() != expected:
                raise ValueError(f"another text after the loss of a {name}")
            found[name] = time.monotonic() - began
            if not failed():
                raise ValueError("a stream that had begun ended without an error event")
        began = time.monotonic()
        machines[0].terminate()
        if any(machine.wait(PATIENCE) for machine in machines):
            raise ValueError(f"a machine ended with an error: {servers.log(2).read_text()[-2000:]}")
        found["stop_s"] = time.monotonic() - began
    return found


def ray_recovery(folder: Path) -> dict[str, float]:
    """Return the seconds of `recovery` on a local Ray cluster of three machines."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    found, cluster = {}, Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(MACHINES - 1):
            cluster.add_node(**node)
        with Servers(folder, 2) as servers:
            servers.start_on_ray(cluster.address)
            expected = servers.text()
            for name in LOST:
                failed = servers.stream()
                machine, worker = far_worker(cluster)
                began = time.monotonic()
                if name == "machine_s":
                    cluster.remove_node(machine, allow_graceful=False)
                else:
                    worker.kill()
                if servers.text() != expected:
                    raise ValueError(f"another text after the loss of a {name}")
                found[name] = time.monotonic() - began
                if not failed():
                    raise ValueError("a stream that had begun ended without an error event")
    finally:
        cluster.shutdown()
    return found


def far_worker(cluster: Any) -> tuple[Any, psutil.Process]:
    """Return the Ray machine with a worker of the engine, and that worker."""
    for machine in cluster.list_all_nodes():
        raylet = psutil.Process(machine.all_processes["raylet"][0].process.pid)
        for process in raylet.children(recursive=True):
            if "quire.executor.rank" in " ".join(process.cmdline()):
                return machine, process
    raise LookupError("no machine has a worker")


def refusals(folder: Path) -> dict[str, float]:
    """Return the seconds in which wrong machines are refused, each by name."""
    found = {}
    with Servers(folder, 2) as servers:
        servers.start(0)
        servers.wait_until_listening()
        for name, (why, env, first, more) in WRONG.items():
            machine = servers.start(1, first, env, *more)
            log, began = servers.log(1), None
            while machine.poll() is None:
                if began is None and b"waiting for node 0" in log.read_bytes():
                    began = time.monotonic()
                time.sleep(1e-3)
            if began is None or why not in log.read_text():
                raise ValueError(f"a machine with another {name} said: {log.read_text()[-2000:]}")
            found[f"{name}_s"] = time.monotonic() - began
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ray", action="store_true", help="losses in a local Ray cluster")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    samples: list[dict[str, Any]] = []
    for _ in range(args.repetitions):
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder)
            found = ray_recovery(where) if args.ray else recovery(where) | refusals(where)
            samples.append(found)
    row = summarise({"machines": MACHINES, "ray": args.ray}, samples)
    print(json.dumps(row, indent=2))
    if args.json:
        command = "python benchmarks/cluster_faults.py"
        write_json(args.json, row | circumstances("cluster_faults", command))


if __name__ == "__main__":
    main()
