"""Row 45: a disk that is full, under the log; caches and traces have their own tests."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import httpx

from quire.bench.serving.server_process import is_ready
from tests.e2e.serving import QUIRE, START_SECONDS, Server
from tests.faults.requests import assert_unharmed
from tests.ports import free_port


def test_row_45_a_log_on_a_full_disk(tiny_model: Path) -> None:
    port = str(free_port())
    command = [*QUIRE, "serve", str(tiny_model), "--port", port, "--num-gpu-blocks-override", "64"]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=full)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(url):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with httpx.Client(base_url=url, timeout=60) as http:
            server = Server(url, "tiny", process, Path("/dev/full"), http)
            canary = server.text()
            assert server.complete(temperature=-1).status_code == 400
            assert_unharmed(server, canary)
    finally:
        process.terminate()
        process.wait(60)
