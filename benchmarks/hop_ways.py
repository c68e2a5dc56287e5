"""A hop of rows between two processes: own sockets, without and with TLS, and ZeroMQ, without and
with CURVE.

    python benchmarks/hop_ways.py [--rounds 200] [--json FILE.jsonl]

Half a round trip over the loopback, in ms. All ways are connected at the same time and take turns.
Needs pyzmq, and `openssl` for a certificate.
"""

from __future__ import annotations

import argparse
import hmac
import json
import multiprocessing
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zmq
from zmq.utils import z85

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json
from quire.parallel.handshake import set_options
from quire.parallel.sealed import Seal
from quire.parallel.stage import FarLink, RowShape
from tests.certificate import write_pem
from tests.ports import free_port

KEY = b"a key of the benchmarks"
WAYS = ("own", "zmq", "curve", "tls")
SIZES = ((1, 1024), (64, 1024), (64, 4096), (2048, 4096))
"""Rows, and their width: numbers of two bytes."""
PATIENCE = 60.0


class End(Protocol):
    """One end of a connection."""

    def send(self, step: int, rows: Any) -> None: ...

    def receive(self, step: int) -> Any: ...


class ZmqEnd:
    def __init__(self, port: int, *, near: bool, curve: bool) -> None:
        self._socket = socket_ = zmq.Context.instance().socket(zmq.PAIR)
        if curve:
            server, client = (
                z85.encode(hmac.digest(KEY, role, "sha256")) for role in (b"server", b"client")
            )
            socket_.curve_secretkey = server if near else client
            socket_.curve_publickey = zmq.curve_public(server if near else client)
            if near:
                socket_.curve_server = True
            else:
                socket_.curve_serverkey = zmq.curve_public(server)
        where = f"tcp://127.0.0.1:{port}"
        if near:
            socket_.bind(where)
        else:
            socket_.connect(where)

    def send(self, step: int, rows: Any) -> None:
        self._socket.send(step.to_bytes(16, "little"), zmq.SNDMORE)
        self._socket.send(rows, copy=rows.nbytes < 65536)

    def receive(self, step: int) -> Any:
        self._socket.recv()
        frame = self._socket.recv(copy=False)
        return np.frombuffer(frame.buffer, np.uint16)


def ends(ports: list[int], pem: str, count: int, *, near: bool) -> list[End]:
    """Connect all ways."""
    found: list[End] = []
    for way, port in zip(WAYS, ports, strict=True):
        if way in ("zmq", "curve"):
            found.append(ZmqEnd(port, near=near, curve=way == "curve"))
            continue
        if near:
            with socket.create_server(("127.0.0.1", port)) as listener:
                stream = listener.accept()[0]
        else:
            stream = _dialled(port)
        set_options(stream)
        if way == "tls":
            stream = Seal(pem).wrap(stream, time.monotonic() + PATIENCE, listens=near)
        shape = RowShape(1, count, np.dtype(np.uint16), 2)
        found.append(FarLink(stream.detach(), shape, receives=True))
    return found


def _dialled(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.01)


def send_back(ports: list[int], pem: str, count: int, rounds: int) -> None:
    """Send all rows back, in the other process."""
    every = ends(ports, pem, count, near=False)
    for step in range(1, rounds + 1):
        for end in every:
            end.send(step, end.receive(step).reshape(1, -1))
    time.sleep(1.0)  # ZeroMQ sends in a thread


def hops(pem: str, rows: int, width: int, rounds: int) -> dict[str, float]:
    """Return each way's median of milliseconds."""
    ports, count = [free_port() for _ in WAYS], rows * width
    args = (ports, pem, count, rounds)
    other = multiprocessing.get_context("spawn").Process(target=send_back, args=args)
    other.start()
    every = ends(ports, pem, count, near=True)
    sent = np.random.default_rng(0).integers(0, 2**16, (1, count), np.uint16)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for step in range(1, rounds + 1):
        for way, end in zip(WAYS, every, strict=True):
            began = time.perf_counter()
            end.send(step, sent)
            back = end.receive(step)
            times[way].append(time.perf_counter() - began)
            assert step > 1 or (back.reshape(1, -1) == sent).all()
    other.join()
    return {way: round(500 * statistics.median(taken), 3) for way, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help="of small sizes (default: 200)")
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        pem = write_pem(Path(name) / "cluster.pem")
        for rows, width in SIZES:
            rounds = args.rounds if rows < 1000 else max(2, args.rounds // 16)
            row[f"{rows}x{width}"] = hops(pem, rows, width, rounds)
    print(json.dumps(row, indent=2))
    if args.json:
        write_json(args.json, row | circumstances("hop_ways", "python benchmarks/hop_ways.py"))


if __name__ == "__main__":
    main()
