"""A server of one's own: found ready, stopped, and quoted when it fails."""

from __future__ import annotations

import argparse
import socket
import subprocess
import urllib.request

import pytest

from quire.bench.serving import server_process
from quire.bench.serving.server_process import free_port, is_ready, running_server
from quire.core.errors import QuireError
from tests.unit.bench.parsed import bench_args

READY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = " ".join(sys.argv[1:]).encode()
        self.send_response(200 if self.path in ("/ready", "/argv") else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def flags(*argv: str) -> argparse.Namespace:
    return bench_args("serve", *argv)


def test_it_runs_with_the_engine_flags_and_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_MAIN", READY)
    with (
        running_server(flags("--model", "m", "--max-num-seqs", "3")) as url,
        urllib.request.urlopen(url + "/argv", timeout=60) as response,
    ):
        argv = response.read().decode()
    assert argv.startswith("serve --host 127.0.0.1 --port ")
    assert argv.endswith(" --model=m --max-num-seqs=3")
    assert not is_ready(url)


def test_its_last_words_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_MAIN", "raise SystemExit('no such model')")
    with pytest.raises(QuireError, match="no such model"), running_server(flags()):
        pass


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    stop = server_process.stop
    monkeypatch.setattr(server_process, "_MAIN", "import time; time.sleep(60)")

    def stop_and_keep(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        stop(process)

    monkeypatch.setattr(server_process, "stop", stop_and_keep)
    with pytest.raises(QuireError, match="ready"), running_server(flags("--start-timeout", "0.1")):
        pass
    assert started[0].returncode is not None


def test_free_ports_can_be_bound() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
