"""The server as a process: what it loads, what it costs while idle, how it leaves."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import httpx
import psutil

from tests.e2e.serving import Server, serving


def test_the_api_process_has_no_torch(server: Server) -> None:
    assert server.text()
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "zmq" in maps  # the right process


def test_idle_costs_nothing(server: Server) -> None:
    server.text()
    parent = psutil.Process(server.process.pid)
    children = parent.children(recursive=True)
    # One may stand by, and still import what it will need.
    processes = [parent, *(p for p in children if "stand-by" not in p.cmdline())]
    # The API's, the core's, the tokenizer's; one for structures, once a test has asked for it.
    assert len([p for p in processes if "quire.engine.grammar_worker" not in p.cmdline()]) == 3
    before = [sum(p.cpu_times()[:2]) for p in processes]
    time.sleep(3)
    used = sum(sum(p.cpu_times()[:2]) for p in processes) - sum(before)
    assert used < 0.02 * 3


def test_the_timeline_adds_up(server: Server) -> None:
    lines = [line.split() for line in server.log.read_text().splitlines()]
    phases = {f[0]: float(f[1]) for f in lines if len(f) == 3 and f[2] == "s"}
    total = phases.pop("start-up")
    assert {"resolve", "tokenizer", "spawn", "http"} <= phases.keys()
    assert abs(sum(phases.values()) - total) < 0.005 * (len(phases) + 1)
    assert abs(phases["other"]) < 0.2 * total


def test_sigterm_finishes_what_is_under_way(tiny_model: Path) -> None:
    with serving(tiny_model) as server:
        core = psutil.Process(server.process.pid).children()
        answers: list[httpx.Response] = []
        request = threading.Thread(
            target=lambda: answers.append(server.complete(max_tokens=300, ignore_eos=True))
        )
        request.start()
        while not server.metric("num_requests_running"):
            time.sleep(0.01)
        with server.http.stream("GET", "/dashboard/stream") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: snapshot"
            status = server.stop(signal.SIGTERM)
            list(lines)  # raises unless the stream was ended
        request.join(30)
        assert status == 0
        assert answers[0].json()["usage"]["completion_tokens"] == 300
        assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in core)


def test_keys_and_a_second_server(tiny_model: Path) -> None:
    with serving(tiny_model, "--api-key", "secret") as server:
        assert server.http.get("/health").status_code == 200
        assert server.complete().status_code == 401
        server.http.headers["authorization"] = "Bearer secret"
        assert server.text()
        assert server.stop(signal.SIGINT) == 0
