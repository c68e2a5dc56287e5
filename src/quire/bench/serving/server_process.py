"""Start `quire serve` on a free port, and stop it at the end."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from quire.core.errors import QuireError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import engine_flags_from

_MAIN = (
    "import os; from quire.bench.serving.server_process import end_with; end_with(os.getppid());"
    "from quire.__main__ import main; main()"
)
_POLL_SECONDS = 0.1
_STOP_SECONDS = 15.0
_PARENT_POLL_SECONDS = 1.0


@contextmanager
def running_server(args: argparse.Namespace) -> Iterator[str]:
    """Yield the base URL of a ready server with the engine flags in `args`.

    Raises:
        QuireError: it ends before it is ready, or takes longer than `args.start_timeout` seconds;
            with the last lines of its log.
    """
    port = free_port()
    flags = ["--host", "127.0.0.1", "--port", str(port)]
    flags += engine_flags_from(EngineArgs.from_cli_args(args))
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        command = [sys.executable, "-c", _MAIN, "serve", *flags]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + args.start_timeout
            while not is_ready(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    tail = " | ".join(log.read().strip().splitlines()[-5:])
                    raise QuireError(f"`quire serve` did not become ready: {tail}")
                time.sleep(_POLL_SECONDS)
            yield url
        finally:
            stop(process)


def end_with(parent: int) -> None:
    """End this process soon after its parent: a killed benchmark must not leave a server behind."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the process; kill it if it does not end in time."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
