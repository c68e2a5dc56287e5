"""Where other machines offer engine cores, each for one replica of this front end.

    machine → gate    Join, whose node is the replica; Welcome, or Refused and the end
    machine → gate    Attach, then a Hello: the core's own connection

One port serves all replicas. Each replica has a process that stands for its core (`stand`), to
which this thread hands the connections over a Unix socket; the process compares and answers.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import msgspec

from quire.core.errors import ConfigError
from quire.executor.cluster import JOIN_SECONDS
from quire.executor.joining import Attach, Join, cluster_key, offer_of, refuse
from quire.frontend.client.core_client import ProcessClient
from quire.frontend.client.standby import NoStandby, Standby
from quire.parallel import handshake
from quire.parallel.heartbeat import has_ended, say_goodbye

logger = logging.getLogger(__name__)

POLL = 0.1
COMMAND = (sys.executable, "-m", "quire.frontend.far.stand")
NEXT = b"next"
"""What a standing process sends when the machine that it was given will not do."""
TAKEN = b"taken"
"""What it sends when it has read a connection."""
MOST_BYTES = 2**17
"""Length of the longest message to a standing process."""


class Handed(msgspec.Struct, array_like=True):
    """A connection, or why no machine came.

    Attributes:
        frame: its first one.
        host: its other end.
    """

    frame: bytes
    host: str
    failure: str = ""


class _Standing:
    """A process that stands for a replica's core.

    Attributes:
        machine: what it was given; None while it waits for one.
        beats: a copy of that machine's connection, for a goodbye.
        has_taken: whether the process has read something.
    """

    def __init__(self, end: socket.socket, rank: int) -> None:
        self.end, self.rank = end, rank
        self.machine: Join | None = None
        self.host = ""
        self.beats: socket.socket | None = None
        self.has_taken = False

    def join(self, machine: Join, arrival: handshake.Arrival) -> None:
        """Hand over a machine's first connection."""
        self.machine, self.host = machine, arrival.host
        self.beats = arrival.connection.dup()
        self.give(arrival)

    def part(self) -> None:
        """Forget the machine, which must see that the process has closed its connection."""
        self.machine = None
        if self.beats is not None:
            self.beats.close()
            self.beats = None

    def give(self, arrival: handshake.Arrival) -> None:
        frame = msgspec.msgpack.encode(Handed(arrival.frame, arrival.host))
        with arrival.connection as connection, suppress(OSError):  # its end is noticed
            connection.settimeout(None)
            socket.send_fds(self.end, [frame], [connection.fileno()])

    def fail(self, why: str) -> None:
        """Have the process end; one that reads nothing is killed."""
        if self.machine is None:
            with suppress(OSError):
                self.end.send(msgspec.msgpack.encode(Handed(b"", "", why)))
            return
        logger.error("The process that stands for replica %d reads nothing; killed.", self.rank)
        size = struct.calcsize("iII")
        peer = self.end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        with suppress(ProcessLookupError):
            os.kill(struct.unpack("iII", peer)[0], signal.SIGKILL)

    def lives(self) -> bool:
        """Return whether the process is there; notice what it says."""
        try:
            while said := self.end.recv(64, socket.MSG_DONTWAIT):
                if said == NEXT:
                    self.part()
                self.has_taken = True
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False


class Gate:
    """Listens for other machines while there is a front end.

    Args:
        where: address and port.
        ranks: replicas whose cores are on other machines; the last of all.
        seconds: how long a start waits for them.

    Raises:
        ConfigError: there is no key, or the address cannot be used.
    """

    def __init__(self, where: tuple[str, int], ranks: range, seconds: float = JOIN_SECONDS) -> None:
        key = cluster_key()
        try:
            self._doorman = handshake.Doorman(*where, key)
        except OSError as error:
            raise ConfigError(
                f"This machine cannot listen at {handshake.at(where)}: {error}.",
                fix="Set --data-parallel-address to an address of this machine, and "
                "--data-parallel-rpc-port to a free port.",
                param="data_parallel_address",
            ) from None
        self.ranks, self._seconds = ranks, seconds
        self.address = self._doorman.address
        self._place = handshake.reachable(self.address).replace(
            "--master-addr", "--data-parallel-address"
        )
        self._folder = Path(mkdtemp(prefix="quire-"))
        self._inside = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._inside.bind(str(self._folder / "gate"))
        self._inside.listen(len(ranks))
        self._inside.setblocking(False)
        self._end = time.monotonic() + seconds
        self._new = set(ranks)  # never joined yet
        self._reminder = handshake.Reminder()
        self._said = [*ranks]  # what the log says is missing
        self._standing: dict[int, _Standing] = {}
        self._held: dict[int, tuple[Join, handshake.Arrival]] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._thread.start()

    def connect(self, rank: int) -> ProcessClient:
        """Return a client for a core on another machine."""
        numbers = str(rank), str(self.ranks.stop)
        return ProcessClient((*COMMAND, str(self._folder / "gate"), *numbers))

    def standby(self, rank: int) -> Standby:
        """Return what makes clients for a replica. It prepares none: the machine has its own."""
        return NoStandby(lambda: self.connect(rank))

    def close(self) -> None:
        """Stop listening, after a goodbye to all machines. Harmless when repeated."""
        self._closing = True
        self._thread.join()
        self._doorman.close()
        self._inside.close()
        every = [*self._standing.values()]
        held = [arrival.connection for _, arrival in self._held.values()]
        say_goodbye([*held, *(one.beats for one in every if one.beats is not None)])
        for connection in held:
            connection.close()
        for standing in every:
            standing.part()
            standing.end.close()
        self._held, self._standing = {}, {}
        rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        logger.info(
            "waiting at %s for replicas %s. Start `quire serve --headless` on other machines with "
            "the same flags and --data-parallel-start-rank.",
            self._place,
            _numbers(self.ranks),
        )
        while not self._closing:
            arrival = self._doorman.next(POLL)
            self._look()
            if arrival is not None and (why := self._take(arrival)) is not None:
                refuse(arrival.connection, arrival.host, why)
            self._give()

    def _look(self) -> None:
        """Take new standing processes, and drop those that have ended."""
        for rank, standing in [*self._standing.items()]:
            if not standing.lives():
                standing.part()
                standing.end.close()
                del self._standing[rank]
            elif standing.has_taken:
                self._new.discard(rank)
        with suppress(BlockingIOError):
            while True:
                end, _ = self._inside.accept()
                end.settimeout(1.0)
                with suppress(OSError, ValueError):  # it was killed
                    rank = int(end.recv(16))
                    end.setblocking(False)  # nobody may stop this thread
                    if (earlier := self._standing.get(rank)) is not None:
                        earlier.part()
                        earlier.end.close()
                    self._standing[rank] = _Standing(end, rank)
        missing = sorted(rank for rank, one in self._standing.items() if one.machine is None)
        if missing != self._said and self._reminder.is_due():
            self._said = missing
            if missing:
                logger.warning("waiting at %s for replicas %s", self._place, _numbers(missing))
        if self._new and time.monotonic() > self._end:
            new = [rank for rank in missing if rank in self._new]
            why = f"No machine has offered replica {_numbers(new)} at {self._place} within "
            for rank in self._new & set(self._standing):
                self._standing[rank].fail(f"{why}{self._seconds:.0f} s.")

    def _take(self, arrival: handshake.Arrival) -> str | None:
        """Hand over a connection or hold it; return why it is refused instead."""
        try:
            message = offer_of(arrival.frame)
        except handshake.HandshakeError as error:
            return str(error)
        if len(arrival.frame) > MOST_BYTES:
            return f"it sent {len(arrival.frame)} bytes; at most {MOST_BYTES} are allowed"
        if isinstance(message, Attach):
            standing = self._standing.get(message.worker)
            if standing is None or standing.machine is None:
                arrival.connection.close()
            else:
                standing.give(arrival)
            return None
        rank = message.node
        if rank not in self.ranks:
            return f"replica {rank} is not one of those on other machines, {_numbers(self.ranks)}"
        for other, host in (self._joined(rank), self._waiting(rank)):
            if other is not None and other.agent != message.agent:
                return f"replica {rank} is there already, from {host}"
        if rank in self._held:
            self._held[rank][1].connection.close()
        self._held[rank] = message, arrival
        return None

    def _joined(self, rank: int) -> tuple[Join | None, str]:
        """Return the machine that has a replica."""
        standing = self._standing.get(rank)
        return (None, "") if standing is None else (standing.machine, standing.host)

    def _waiting(self, rank: int) -> tuple[Join | None, str]:
        """Return the machine that waits with a replica for its standing process."""
        if rank not in self._held or has_ended(self._held[rank][1].connection):
            return None, ""
        join, arrival = self._held[rank]
        return join, arrival.host

    def _give(self) -> None:
        """Hand the machines that wait to standing processes that do."""
        for rank, (join, arrival) in [*self._held.items()]:
            standing = self._standing.get(rank)
            if standing is not None and standing.machine is None:
                del self._held[rank]
                if has_ended(arrival.connection):
                    arrival.connection.close()
                    continue
                logger.info("replica %d has joined from %s", rank, arrival.host)
                standing.join(join, arrival)


def _numbers(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def end_of(path: str, rank: int) -> socket.socket:
    """Return a standing process's connection to the gate."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.connect(path)
    end.send(str(rank).encode())
    return end
