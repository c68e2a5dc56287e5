"""A second machine behind a slow network: a fault for `explain_served`."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

DELAY = 0.02
"""Seconds that each way takes."""
KEY = {"QUIRE_CLUSTER_KEY": "a key of the benchmarks"}
_STAGES = ("--pipeline-parallel-size", "2", "--nnodes", "2", "--master-port")


def behind_a_slow_link(folder: Path) -> tuple[str, ...]:
    """Start a machine that reaches node 0 through a slow proxy; return node 0's flags.

    It ends once the folder is gone.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    proxy = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(proxy, port), daemon=True).start()
    command = [sys.executable, "-m", "quire", "serve", "opt-125m", "--load-format", "dummy"]
    command += ["--dtype", "bfloat16", *_STAGES, str(proxy.getsockname()[1])]
    command += ["--headless", "--node-rank", "1"]
    other = subprocess.Popen(command, env=os.environ | KEY, stderr=subprocess.DEVNULL)

    def end() -> None:
        while folder.exists():
            time.sleep(0.1)
        other.kill()
        other.wait()
        proxy.close()

    threading.Thread(target=end, daemon=True).start()
    return (*_STAGES, str(port))


def _accept(proxy: socket.socket, port: int) -> None:
    """Connect each connection of the proxy to `port`."""
    while True:
        try:
            near = proxy.accept()[0]
            far = socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            near.close()
            continue
        except OSError:
            return
        for ends in ((near, far), (far, near)):
            parts: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            threading.Thread(target=_take, args=(ends[0], parts), daemon=True).start()
            threading.Thread(target=_give, args=(ends[1], parts), daemon=True).start()


def _take(come: socket.socket, parts: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    data = b"more"
    while data:
        data = b""
        with suppress(OSError):
            data = come.recv(1 << 16)
        parts.put((time.monotonic(), data))


def _give(go: socket.socket, parts: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    """Send each part `DELAY` seconds after it came."""
    with suppress(OSError):
        while True:
            came, data = parts.get()
            time.sleep(max(0.0, came + DELAY - time.monotonic()))
            if not data:
                go.shutdown(socket.SHUT_RDWR)
                return
            go.sendall(data)
