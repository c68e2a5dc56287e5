"""The process that stands for an engine core which another machine offers:
`python -m quire.frontend.far.stand GATE RANK REPLICAS DIRECTORY PARENT SOCKET`.

It waits for such a machine at the front end's `gate`, compares, and passes frames on (`lines`).
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from contextlib import suppress
from functools import partial

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError
from quire.executor.joining import (
    Attach,
    Join,
    Welcome,
    difference,
    encode,
    offer_of,
    own_join,
    refuse,
)
from quire.frontend.far.gate import MOST_BYTES, NEXT, TAKEN, Handed, end_of
from quire.frontend.far.lent import hello_of
from quire.frontend.far.lines import Clock, Lines, stand
from quire.parallel.handshake import GREET_SECONDS, HandshakeError, receive_frame, send_frame
from quire.parallel.heartbeat import has_ended
from quire.system.frames import FrameSocket

ATTACH_SECONDS = 30.0
"""How long a machine may take to connect its core after the `Welcome`."""
_POLL = 0.2


class Offered:
    """A core of some machine that offers this replica.

    Args:
        path: of the gate.
        replicas: of all machines together.
    """

    def __init__(self, path: str, rank: int, replicas: int, config: EngineConfig) -> None:
        self._own = own_join(config, 0, replicas)
        self._rank = rank
        self._gate = end_of(path, rank)
        self.name = "another machine"

    def connect(self, near: FrameSocket) -> Lines:
        """See `Far`."""
        while True:
            frame, beats = self._next(near)
            join = offer_of(frame)
            if isinstance(join, Join):
                if (lines := self._joined(near, join, beats)) is not None:
                    return lines
                self._gate.send(NEXT)
            beats.close()

    def last_words(self) -> str:
        """See `Far`."""
        return ""

    def _joined(self, near: FrameSocket, join: Join, beats: socket.socket) -> Lines | None:
        """Return the lines to a machine's core; None if it will not do, or has gone."""
        if (why := difference(self._own, join, f"replica {self._rank}")) is not None:
            refuse(beats, self.name, why)
            return None
        attempt, end = os.urandom(8).hex(), time.monotonic() + ATTACH_SECONDS
        with suppress(OSError, HandshakeError):  # the machine has gone
            send_frame(beats, encode(Welcome(attempt, None, self._own.config)))
            while time.monotonic() < end and not has_ended(beats):
                if not _readable(near, self._gate):
                    near.receive(wait=False)
                    continue
                frame, line = self._next(near)
                attach = offer_of(frame)
                if not isinstance(attach, Attach) or attach.attempt != attempt:
                    line.close()
                    continue
                try:
                    hello = hello_of(receive_frame(line, time.monotonic() + GREET_SECONDS))
                except EngineDeadError as error:
                    refuse(line, self.name, str(error))
                    return None
                line.settimeout(None)
                lines = Lines(near, line, beats, Clock(hello.clock))
                lines.configure(hello.config)
                return lines
        return None

    def _next(self, near: FrameSocket) -> tuple[bytes, socket.socket]:
        """Return the next connection from the gate and its first frame.

        Raises:
            ClosedError: the front end has ended.
            EngineDeadError: no machine came in time.
        """
        while not _readable(near, self._gate):
            near.receive(wait=False)
        data, descriptors, _, _ = socket.recv_fds(self._gate, 2 * MOST_BYTES, 1)
        if not data:
            raise EngineDeadError("The front end's gate has closed.")
        handed = msgspec.msgpack.decode(data, type=Handed)
        if handed.failure:
            raise EngineDeadError(
                handed.failure,
                fix="Start `quire serve --headless` there with the same flags, "
                "--data-parallel-start-rank and --data-parallel-address; check firewalls.",
            )
        self._gate.send(TAKEN)
        self.name = handed.host
        return handed.frame, socket.socket(fileno=descriptors[0])


def _readable(near: FrameSocket, gate: socket.socket) -> bool:
    """Wait a moment; return whether the gate has something."""
    ends = [gate.fileno(), near.fileno()]
    return ends[0] in select.select(ends, [], [], _POLL)[0]


def main(argv: list[str]) -> int:
    """Pass frames on until the core or the front end ends; return the exit status."""
    path, rank, replicas, *ends = argv
    return stand(ends, lambda: partial(Offered, path, int(rank), int(replicas)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
