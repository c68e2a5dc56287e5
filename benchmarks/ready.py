"""How long does `quire serve` take until it is ready, and its first answer?

    python benchmarks/ready.py [--starts N] [--model NAME] PROGRAM...

PROGRAM is the `quire` of an environment; several take turns, so that two versions are compared on
one machine. Compile their byte code before (`python -m compileall -q src/quire`). The first start
of each is not counted. It prints medians, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

POLL_SECONDS = 0.002
LONGEST_SECONDS = 120.0


class Start(NamedTuple):
    """Seconds until `/health` returned 200, CPU seconds of all processes until then, and seconds
    of the first chat after it."""

    ready: float
    cpu: float
    first_answer: float


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from tree(int(child))


def cpu_seconds(pid: int) -> float:
    """Return what all threads of a process and its descendants have run."""
    files = (file for each in tree(pid) for file in Path(f"/proc/{each}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def asked(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_SECONDS)
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if body or path == "/v1/models" else text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def start(program: str, model: str) -> Start:
    """Start a server, ask it once and stop it.

    Raises:
        SystemExit: it ended, or was not ready in time.
    """
    port = free_port()
    began = time.monotonic()
    words = [program, "serve", model, "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while not healthy(port):
                if server.poll() is not None or time.monotonic() - began > LONGEST_SECONDS:
                    raise SystemExit(f"{' '.join(words)} was not ready: {server.returncode}")
                time.sleep(POLL_SECONDS)
            ready, cpu = time.monotonic() - began, cpu_seconds(server.pid)
            name = asked(port, "GET", "/v1/models")[1]["data"][0]["id"]
            chat = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            before = time.monotonic()
            status, answer = asked(port, "POST", "/v1/chat/completions", chat)
            if status != 200:
                raise SystemExit(f"the first chat failed: {answer}")
            return Start(ready, cpu, time.monotonic() - before)
        finally:
            server.terminate()


def healthy(port: int) -> bool:
    try:
        return asked(port, "GET", "/health")[0] == 200
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    parser.add_argument("--starts", type=int, default=7, metavar="N")
    parser.add_argument("--model", default="embedded")
    args = parser.parse_args()
    found: dict[str, list[Start]] = {program: [] for program in args.programs}
    for turn in range(args.starts + 1):
        for program in args.programs[:: 1 if turn % 2 else -1]:
            taken = start(program, args.model)
            if turn:
                found[program].append(taken)
    print("# load:", *os.getloadavg())
    for program, starts in found.items():
        columns = zip(Start._fields, zip(*starts, strict=True), strict=True)
        parts = (f"{name} {median(c):.3f} ({min(c):.3f}-{max(c):.3f})" for name, c in columns)
        print(program, *parts, sep="  ")


if __name__ == "__main__":
    main()
