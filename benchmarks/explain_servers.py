"""Run a server with a fault, its clients, and `quire explain` beside them."""

from __future__ import annotations

import itertools
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit
from weakref import WeakKeyDictionary

from benchmarks.explain_injections import Server
from benchmarks.explain_loads import Body, Fault, to_the_end
from quire.bench.serving.server_process import free_port, is_ready, stop
from quire.cli.explain import SilentServerError, ask
from quire.explain.evidence import Evidence
from quire.explain.report import Finding
from quire.explain.silent import silence

WINDOW, WARM = 3.0, 1.0
LEAVING = 5.0
"""Seconds that all clients together may take to leave."""
LONGEST_WARM, LONGEST = 6.0, 8.0
"""Most seconds of a first round of answers, and of a window of some rounds."""
ROUNDS = 2.5
"""Rounds of answers that a window should hold."""
Ended = list[tuple[float, int]]
"""When each answer ended, and its tokens."""
NUMBERS = itertools.count()
"""Of requests: no fault repeats the prompts of another."""


@contextmanager
def serving(fault: Fault, folder: Path) -> Iterator[Server]:
    port = free_port()
    model, *others = fault.flags  # a change is the last of them, and the last of equal flags counts
    flags = [model, *(fault.prepare(folder) if fault.prepare else ()), *others]
    flags += ["--host", "127.0.0.1", "--port", str(port)]
    url = f"{'https' if '--ssl-certfile' in flags else 'http'}://127.0.0.1:{port}"
    with (folder / "log").open("w+") as log:
        with fault.start():
            process = subprocess.Popen(
                [sys.executable, "-m", "quire", "serve", *flags], cwd=folder,
                stdout=log, stderr=subprocess.STDOUT, env=os.environ | fault.environment,
            )  # fmt: skip
        try:
            while not is_ready(url):
                if process.poll() is not None:
                    raise SystemExit((folder / "log").read_text()[-2000:])
                time.sleep(0.1)
            yield Server(url, process.pid, folder)
        finally:
            stop(process)


@contextmanager
def load(fault: Fault, url: str) -> Iterator[Ended]:
    """Send requests from all clients until the end of the block; yield the answers so far."""
    over, address, ended = threading.Event(), urlsplit(url), Ended()
    model = fault.flags[0]

    def client() -> None:
        host, port = address.hostname or "", address.port
        secure = ssl._create_unverified_context() if address.scheme == "https" else None
        while not over.wait(fault.pause):
            connection = (
                HTTPSConnection(host, port, timeout=60, context=secure)
                if secure is not None
                else HTTPConnection(host, port, timeout=60)
            )
            try:
                if fault.received:
                    connection.sock = narrow(address, fault.received)
                body: Body = {"model": model} | fault.body(next(NUMBERS))
                head = {"Content-Type": "application/json"}
                connection.request("POST", fault.path, json.dumps(body), head)
                answer = connection.getresponse()
                while not over.is_set() and fault.reads(answer):
                    pass
                if answer.status != 200:
                    time.sleep(0.05)
                elif not over.is_set():
                    ended.append((time.monotonic(), body["max_tokens"]))
            except (OSError, HTTPException):
                time.sleep(0.05)
            finally:
                connection.close()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(fault.clients)]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        over.set()
        end = time.monotonic() + LEAVING
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


def narrow(address: SplitResult, received: int) -> socket.socket:
    """Connect a socket that holds few received bytes."""
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
    connected.settimeout(60.0)
    connected.connect((address.hostname, address.port))
    return connected


def observed(server: Server, fault: Fault) -> Evidence | Finding:
    """Return a window of the server under its load; why it is silent, if it does not answer.

    Raises:
        QuireError: it answers with an error, or its silence has no known cause.
    """
    with load(fault, server.url), fault.during(server):
        time.sleep(WARM)
        try:
            return ask(server.url, WINDOW)
        except SilentServerError:
            if (finding := silence(urlsplit(server.url).port or 0)) is None:
                raise
            return finding


class Measured(NamedTuple):
    """A window, its output tokens/s, and the p99 of seconds between two events of a stream."""

    evidence: Evidence
    tokens: float
    late: float


def measured(server: Server, fault: Fault) -> Measured:
    """Return a window after each client's first answer."""
    begin, events = time.monotonic(), Events()
    if fault.reads is to_the_end:
        fault = replace(fault, reads=events.read)
    with load(fault, server.url) as ended, fault.during(server):
        time.sleep(WARM)
        while len(ended) < fault.clients and time.monotonic() < begin + LONGEST_WARM:
            time.sleep(0.02)
        start = time.monotonic()
        evidence = ask(server.url, min(LONGEST, max(WINDOW, ROUNDS * (start - begin))))
        speed = tokens_per_second(ended, fault.clients, start)
        late = events.p99(start)
    return Measured(evidence, speed or evidence.window.output_tok_s, late)


class Events:
    """Reads answers, and notes the seconds between their events.

    The server's histogram has one bucket from 0.1 to 0.25 s.
    """

    def __init__(self) -> None:
        self._last = WeakKeyDictionary[HTTPResponse, float]()
        self._gaps: list[tuple[float, float]] = []

    def read(self, answer: HTTPResponse) -> bool:
        """Read the next event; return whether more may follow."""
        more, now = bool(answer.read1(4096)), time.monotonic()
        if more and answer in self._last:
            self._gaps.append((now, now - self._last[answer]))
        self._last[answer] = now
        return more

    def p99(self, start: float) -> float:
        """Return the p99 since `start`; 0.0 without two events of an answer."""
        gaps = sorted(gap for moment, gap in self._gaps if moment >= start)
        return gaps[int(0.99 * len(gaps))] if gaps else 0.0


def tokens_per_second(ended: Ended, clients: int, start: float) -> float:
    """Return the rate of the answers since `start` in whole rounds of all clients, 0.0 without one.

    Clients that began together end together, so a part of a round may hold most of its answers.
    """
    seen = [answer for answer in ended if answer[0] >= start]
    rounds = (len(seen) - 1) // clients * clients
    if rounds <= 0:
        return 0.0
    return sum(tokens for _, tokens in seen[1 : rounds + 1]) / (seen[rounds][0] - seen[0][0])
