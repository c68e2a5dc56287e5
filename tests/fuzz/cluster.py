"""Fuzzed frames between machines: `python -m tests.fuzz.cluster --count 1000000`.

Frames that decode or are refused; then connections to a live listener and to a front end's gate,
and streams of rows and of frames, which end without harm to what listens. With QUIRE_CLUSTER_TLS,
encrypted ones as well.
"""

from __future__ import annotations

import argparse
import hmac
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, write_json
from quire.core.batch import ModelOutput
from quire.core.errors import EngineDeadError
from quire.core.messages import (
    CallResult,
    CoreFailed,
    CoreMessage,
    CoreOutput,
    Ready,
    RequestEvent,
    StepOutputs,
)
from quire.executor import frames, joining
from quire.frontend.far.gate import NEXT, Gate, Handed, end_of
from quire.frontend.far.lent import Hello, hello_of
from quire.frontend.far.lines import Clock, Lines
from quire.parallel.handshake import (
    MAGIC,
    TLS_MAGIC,
    Doorman,
    HandshakeError,
    dial,
)
from quire.parallel.heartbeat import has_ended
from quire.parallel.sealed import Seal, own_seal
from quire.parallel.stage import FarLink, RowShape, StageFailedError
from quire.system.frames import ClosedError, FrameSocket
from tests.fuzz.frames import FRAMES as INPUTS
from tests.fuzz.mutate import mutate_bytes
from tests.unit.engine.fakes import engine_config

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
JOIN = joining.Join("0.1.0", 2, engine_config(), "model", "agent", 3)
WELCOME = joining.Welcome("0123456789abcdef", ("a", 5), engine_config())
CASES: list[tuple[bytes, Callable[[bytes], Any]]] = [
    (joining.encode(joining.Attach("0123456789abcdef", 3, rows=True)), joining.offer_of),
    (joining.encode(JOIN), joining.offer_of),
    (joining.encode(WELCOME), joining.reply_of),
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


OFFERS = [
    joining.encode(each) for each in (JOIN, joining.Attach("0123456789abcdef", 2, rows=False))
]
OUTPUTS = [
    Ready(5, 16, {"load": 0.5}, {"device": "cpu"}, began=3.0),
    StepOutputs(
        [CoreOutput("r", [5], scheduled_time=1.0)],
        *(None, 7.0, None, ["s"], [6]),
        events=[RequestEvent("r", "prefill", 6.0, 5, end=6.5)],
    ),
    CallResult(1, {"a": [5, None]}),
    CoreFailed("code", "why"),
]
_output = msgspec.msgpack.Decoder(CoreMessage).decode


def taken(standing: socket.socket) -> list[bytes]:
    """What the gate has handed over."""
    frames = []
    with suppress(BlockingIOError):
        while True:
            data, found, _, _ = socket.recv_fds(standing, 2**20, 1)
            for descriptor in found:
                os.close(descriptor)
            frames.append(msgspec.msgpack.decode(data, type=Handed).frame)
    return frames


def offer(random: Random, gate: Gate, standing: socket.socket) -> None:
    """Offer a replica wrongly, and leave; what stands for it may want the next one."""
    end = time.monotonic() + SECONDS
    with dial(gate.address, KEY, mutate_bytes(random, random.choice(OFFERS)), end):
        if random.random() < 0.5:
            standing.send(NEXT)
    taken(standing)


def is_taken(gate: Gate, standing: socket.socket) -> bool:
    """Offer the replica; return whether what stands for it gets the offer."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        standing.send(NEXT)
        with dial(gate.address, KEY, OFFERS[0], end) as machine:
            while time.monotonic() < end and not has_ended(machine):  # "is there already"
                if OFFERS[0] in taken(standing):
                    return True
                time.sleep(0.01)
    return False


def both_ways(random: Random) -> None:
    """Pass mutated frames on between a front end and a core; only whole messages arrive there."""
    front, theirs = FrameSocket.pair()
    near = FrameSocket(theirs)
    (core, line), (heart, beats) = socket.socketpair(), socket.socketpair()
    with core, heart, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(Lines(near, line, beats, Clock(5.0)).run)
        for message in random.choices(INPUTS, k=PER_STREAM):
            front.send(mutate_bytes(random, msgspec.msgpack.encode(message)))
        for message in random.choices(OUTPUTS, k=PER_STREAM):
            frame = mutate_bytes(random, msgspec.msgpack.encode(message))
            with suppress(OSError):
                core.sendall(len(frame).to_bytes(4, "little") + frame)
        with suppress(OSError):
            core.sendall(random.randbytes(random.randrange(8)))
            core.shutdown(socket.SHUT_WR)
        assert ended.result(SECONDS) in (None, "has ended")
    near.close()
    with suppress(ClosedError):
        while True:
            for frame in front.receive(wait=True):
                _output(frame)
    front.close()


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
    with patch.dict(os.environ, QUIRE_CLUSTER_KEY=KEY.decode()):
        gate = Gate(("127.0.0.1", 0), range(1, 3))
    standing = end_of(gate.connect(2)._command[-3], 2)
    standing.setblocking(False)
    refused = 0
    for number in range(count):
        refused += decode(random)
        if number % STREAMS == 0:
            connect(random, doorman.address, TLS_MAGIC if seal else MAGIC)
            if seal is not None:
                encrypted(random, seal)
            rows(random)
            stream(random)
            both_ways(random)
            offer(random, gate, standing)
            while doorman.next(0.0) is not None:
                pass
    with dial(doorman.address, KEY, b"hello", time.monotonic() + SECONDS):
        found = doorman.next(SECONDS)
    assert found.frame == b"hello"
    found.connection.close()
    doorman.close()
    assert is_taken(gate, standing)
    standing.close()
    gate.close()
    return refused


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.cluster", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args(argv)
    begin = time.monotonic()
    logging.disable()  # of what is wrong with each
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
