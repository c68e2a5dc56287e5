"""Fuzzed frames between machines: `python -m tests.fuzz.cluster --count 1000000`.

Frames that decode or are refused; then connections to a live listener, and streams of rows and of
frames, which end without harm to what listens. With QUIRE_CLUSTER_TLS, encrypted ones as well.
"""

from __future__ import annotations

import argparse
import hmac
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import numpy as np

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json
from quire.core.batch import ModelOutput
from quire.core.errors import EngineDeadError
from quire.executor import frames, joining
from quire.frontend.far.lent import Hello, hello_of
from quire.parallel.handshake import (
    MAGIC,
    TLS_MAGIC,
    Arrival,
    Doorman,
    HandshakeError,
    dial,
)
from quire.parallel.sealed import Seal, own_seal
from quire.parallel.stage import FarLink, RowShape, StageFailedError
from quire.system.frames import ClosedError, FrameSocket
from tests.fuzz.mutate import mutate_bytes

KEY = b"a key of the fuzzer, long enough"
SHAPE = RowShape(most=6, width=5, dtype=np.dtype(np.float32), steps=2)
SECONDS = 60.0
PER_STREAM = 20
"""Frames of a stream."""
STREAMS = 100
"""One stream, and one connection, for so many frames that are only decoded."""
REFUSED = (HandshakeError, EngineDeadError, msgspec.MsgspecError, UnicodeDecodeError, MemoryError)
"""What those who decode handle."""

_from_worker = frames.decoder(frames.FromWorker).decode
_to_worker = frames.decoder(frames.ToWorker).decode
_OUTPUT = ModelOutput(np.arange(6, dtype=np.int64).reshape(3, 2))
CASES: list[tuple[bytes, Callable[[bytes], Any]]] = [
    (joining.encode(joining.Attach("0123456789abcdef", 3, rows=True)), joining.offer_of),
    (joining.encode(joining.Refused("why")), joining.reply_of),
    (msgspec.msgpack.encode(Hello(None, 5.0)), hello_of),
    (frames.encode(frames.Outcome.of(_OUTPUT, whole=True)), _from_worker),
    (frames.encode(frames.Failed("code", "why")), _from_worker),
    (frames.encode(frames.Call("start_op_profile", [5])), _to_worker),
    (frames.encode(frames.Fit(5, 6)), _to_worker),
]


def decode(random: Random) -> bool:
    """Decode a mutated frame; return whether it was refused."""
    frame, decoded = random.choice(CASES)
    try:
        decoded(mutate_bytes(random, frame))
    except REFUSED:
        return True
    return False


def connect(random: Random, address: tuple[str, int], magic: bytes) -> None:
    """Begin a handshake wrongly, or with the key, and perhaps leave in the middle."""
    hello = magic + random.randbytes(32)
    with socket.create_connection(address) as stranger, suppress(OSError):
        stranger.settimeout(SECONDS)
        whole = random.random() < 0.5
        stranger.sendall(hello if whole else mutate_bytes(random, hello))
        if whole and random.random() < 0.5:
            nonces = hello[len(magic) :] + stranger.recv(len(hello))[len(magic) :]
            stranger.sendall(hmac.digest(KEY, b"dialler" + nonces, "sha256"))
        if random.random() < 0.5:
            stranger.sendall(random.randbytes(random.choice([1, 32, 40, 5000])))
        if random.random() < 0.5:
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass


def encrypted(random: Random, seal: Seal) -> None:
    """Send garbage into a connection that both ends encrypt; both get its end."""
    near, far = socket.socketpair()
    raw, end = near.dup(), time.monotonic() + SECONDS
    with raw, ThreadPoolExecutor(1) as pool:
        listener = pool.submit(seal.wrap, far, end, listens=True)
        with seal.wrap(near, end, listens=False) as one, listener.result() as two:
            one.sendall(b"hello")
            record = b"\x17\x03\x03\x00\x20" + random.randbytes(32)
            with suppress(OSError):
                raw.sendall(mutate_bytes(random, record) + random.randbytes(2**15))
            for each in (two, one):
                each.settimeout(SECONDS)
                while received := each.recv(4096):
                    assert received == b"hello"


def rows(random: Random) -> None:
    """Send a mutated stream of rows; the receiver gets some, and then its end."""
    near, far = socket.socketpair()
    sender = FarLink(near.fileno(), SHAPE, receives=False)
    receiver = FarLink(far.fileno(), SHAPE, receives=True)
    with near, far, suppress(EOFError, OSError):
        sent = np.zeros((6, 5), np.float32)
        for step in range(1, random.randrange(2, PER_STREAM)):
            sender.send(step, sent[: random.randint(1, 6)])
        header = np.array([random.choice([-1, 0, step + 1, 2**62]), random.choice([-3, 7, 2**60])])
        near.sendall(mutate_bytes(random, header.tobytes()))
    sender.close()
    step = 0
    with suppress(EOFError, StageFailedError):
        while step := step + 1:
            assert receiver.receive(step).shape[1] == SHAPE.width
    receiver.close()


def stream(random: Random) -> None:
    """Send a mutated stream of frames; all that arrives is a prefix's frames, then the end."""
    ours, theirs = FrameSocket.pair()
    whole = [frame for frame, _ in random.choices(CASES, k=PER_STREAM)]
    data = b"".join(len(frame).to_bytes(4, "little") + frame for frame in whole)
    with theirs, suppress(OSError):
        theirs.sendall(mutate_bytes(random, data))
    with suppress(ClosedError):
        while True:
            ours.receive(wait=True)
    ours.close()


def fuzz(count: int, seed: int) -> int:
    """Send `count` frames; return how many were refused of those that were only decoded."""
    random = Random(seed)
    doorman, seal = Doorman("127.0.0.1", 0, KEY), own_seal()
    refused = 0
    for number in range(count):
        refused += decode(random)
        if number % STREAMS == 0:
            connect(random, doorman.address, TLS_MAGIC if seal else MAGIC)
            if seal is not None:
                encrypted(random, seal)
            rows(random)
            stream(random)
            while doorman.next(0.0) is not None:
                pass
    with dial(doorman.address, KEY, b"hello", time.monotonic() + SECONDS):
        while not isinstance(found := doorman.next(SECONDS), Arrival):
            assert found is not None
    assert found.frame == b"hello"
    found.connection.close()
    doorman.close()
    return refused


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.cluster", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args(argv)
    begin = time.monotonic()
    refused = fuzz(args.count, args.seed)
    streams = -(-args.count // STREAMS)
    row = {"frames": args.count, "refused": refused, "connections": streams, "streams": streams}
    row["seconds"] = round(time.monotonic() - begin, 1)
    print(row)
    if args.json:
        write_json(args.json, row | circumstances("fuzz_cluster", "python -m tests.fuzz.cluster"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
