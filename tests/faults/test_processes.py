"""Rows 39 and 41 to 44: processes that are killed, stopped, or told to end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.serving import QUIRE, Server, serving, until
from tests.e2e.tiny_model import write_tiny_model
from tests.faults.requests import assert_no_secret, assert_unharmed

PATIENCE = 120.0
LONG = 8000
"""Tokens that take longer than what is done to the core meanwhile."""
DRAFTS = {
    "method": "ngram",
    "prompt_lookup_max": 1,
    "num_speculative_tokens_per_batch_size": [[1, 256, 1]],
}
STAND_BY_FILES = 14
"""Open files that a core takes which stands by: sockets and a pipe."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "long"
    return write_tiny_model(folder, max_position_embeddings=LONG + 192)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    flags = ("--num-gpu-blocks-override", "2048", "--step-timeout", "5")
    with serving(model, *flags, "--speculative-config", json.dumps(DRAFTS)) as running:
        yield running


def children(server: Server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


def core(server: Server) -> psutil.Process:
    """The engine core's process; a younger one stands by."""
    found = [p for p in children(server) if "quire.engine.process" in p.cmdline()]
    return min(found, key=psutil.Process.create_time)


@contextmanager
def no_next_core(server: Server) -> Iterator[None]:
    """Stop the process that stands by, so that the server stays without a core."""
    spares = [p for p in children(server) if "stand-by" in p.cmdline()]
    for spare in spares:
        spare.suspend()
    try:
        yield
    finally:
        for spare in spares:
            with suppress(psutil.NoSuchProcess):  # one that was not ready is not used
                spare.resume()


def healthy(server: Server) -> bool:
    return server.http.get("/health").status_code == 200


class Stream(threading.Thread):
    """A stream that is read to its end; `lines` are its events so far."""

    def __init__(self, server: Server, **fields: Any) -> None:
        super().__init__()
        self._server = server
        self._fields = fields
        self.lines: list[str] = []
        self.start()
        until(lambda: self.lines)

    def run(self) -> None:
        body = {"prompt": "a", "max_tokens": LONG, "ignore_eos": True, "stream": True}
        url = f"{self._server.url}/v1/completions"
        with httpx.stream("POST", url, json=body | self._fields, timeout=PATIENCE) as response:
            for line in response.iter_lines():
                if line:
                    self.lines.append(line.removeprefix("data: "))

    def text(self) -> str:
        """All of it, at its end."""
        self.join(PATIENCE)
        assert self.lines[-1] == "[DONE]"
        choices = [choice for line in self.lines[:-1] for choice in json.loads(line)["choices"]]
        return "".join(choice["text"] for choice in choices)

    def error(self) -> dict[str, Any]:
        """The error event that it ends with."""
        self.join(PATIENCE)
        assert self.lines[-1] == "[DONE]"
        error: dict[str, Any] = json.loads(self.lines[-2])["error"]
        assert_no_secret(json.dumps(error))
        return error


def test_row_39_sigkill_of_the_core(server: Server) -> None:
    """A stream gets an error event; what was told nothing gives the same tokens, seeded by chance
    or not; the core is another one, and all is as before. Drafts are in flight."""
    canary = server.text()
    fields = {"prompt": "b", "max_tokens": 300, "ignore_eos": True, "seed": 1, "temperature": 1}
    alone = server.text(**fields)
    files = psutil.Process(server.process.pid).num_fds()
    killed = core(server)
    drafts = server.metric("spec_decode_num_drafts_total")
    stream = Stream(server)
    until(lambda: server.metric("spec_decode_num_drafts_total") > drafts)
    with ThreadPoolExecutor(1) as pool:
        killed.suspend()
        retried = pool.submit(server.text, **fields)
        until(lambda: server.http.get("/load").json()["server_load"] == 2)
        with no_next_core(server):
            killed.kill()
            until(lambda: not healthy(server))
            assert server.http.get("/ready").status_code == 503
            refused = server.complete()
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "engine_restarting"
            assert refused.headers["retry-after"]
        until(lambda: healthy(server))
        assert retried.result() == alone
    assert stream.error()["code"] == "engine_restarting"
    assert core(server).pid != killed.pid
    restarts = server.http.get("/metrics").text
    assert 'quire:engine_restarts_total{engine="0",model_name="tiny"} 1.0' in restarts
    assert 'quire:requests_retried_total{engine="0",model_name="tiny"} 1.0' in restarts
    assert_unharmed(server, canary)
    most = files + STAND_BY_FILES + 1  # the retried request has a connection of its own
    until(lambda: psutil.Process(server.process.pid).num_fds() <= most)


@pytest.mark.usefixtures("unharmed")
def test_row_41_sigstop_of_the_core(server: Server) -> None:
    stopped = core(server)
    stream = Stream(server)
    stopped.suspend()
    error = stream.error()
    assert error["code"] == "engine_restarting"
    until(lambda: healthy(server))
    assert not stopped.is_running()
    log = server.log.read_text()
    assert "most recent call first" in log
    assert "no step has ended for 5 s" in log


def status(server: Server, path: str) -> int | None:
    """None if the server has gone by now."""
    try:
        return server.http.get(path).status_code
    except httpx.TransportError:
        return None


def test_row_43_sigterm_lets_requests_end(model: Path) -> None:
    with serving(model, "--num-gpu-blocks-override", "2048") as server:
        stream = Stream(server, max_tokens=1500)
        server.process.terminate()
        until(lambda: status(server, "/ready") in (503, None))
        assert status(server, "/health") in (200, None)
        assert server.process.wait(PATIENCE) == 0
        stream.join(PATIENCE)
        assert json.loads(stream.lines[-2])["choices"][0]["finish_reason"] == "length"
        assert stream.lines[-1] == "[DONE]"


def test_row_43_a_second_signal_does_not_wait(model: Path) -> None:
    with serving(model, "--num-gpu-blocks-override", "2048") as server:
        left = children(server)
        with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as client:
            body = b'{"prompt": "a", "max_tokens": %d, "ignore_eos": true, "stream": true}' % LONG
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            client.recv(1)
            server.process.terminate()
            until(lambda: status(server, "/ready") in (503, None))
            assert server.stop() == 0
        assert psutil.wait_procs(left, timeout=PATIENCE)[1] == []


@pytest.mark.parametrize("after", ["the core's fork", "its exec"])
def test_row_44_sigterm_while_loading(model: Path, after: str) -> None:
    process = subprocess.Popen([*QUIRE, "serve", str(model), "--port", "0"], stderr=subprocess.PIPE)
    loading = psutil.Process(process.pid)
    while not loading.children():
        pass  # as early as possible
    if after == "its exec":
        until(lambda: any("quire.engine.process" in p.cmdline() for p in _alive(loading)))
    left = loading.children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert b"Traceback" not in err
    assert psutil.wait_procs(left, timeout=PATIENCE)[1] == []


def _alive(process: psutil.Process) -> list[psutil.Process]:
    return [p for p in process.children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def test_row_42_the_api_process_dies(server: Server) -> None:
    """The last test of this file: it leaves no server."""
    words = [word for child in children(server) for word in child.cmdline()]
    folders = [Path(word) for word in words if Path(word).name.startswith("quire-")]
    assert folders
    assert all(folder.is_dir() for folder in folders)
    left = children(server)
    assert len(left) >= 2
    server.process.kill()
    server.process.wait()
    assert psutil.wait_procs(left, timeout=PATIENCE)[1] == []
    assert not any(folder.exists() for folder in folders)
