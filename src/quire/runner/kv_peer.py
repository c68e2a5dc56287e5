"""KV blocks over TCP: a producer sends its files, a consumer asks for blocks by their keys.

    consumer   frame: what its blocks depend on
    producer   frame: empty, or why it refuses
    consumer   frame: "b" and the key of a block, or "s" and that of a state; again and again
    producer   8 bytes of length (0: it has none), 8 bytes of checksum, the block

Both prove their key first (`parallel.handshake`). A producer sends a file from the page cache, and
hashes nothing: the consumer compares the stored checksum while it copies the block.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.errors import ConfigError
from quire.parallel import handshake
from quire.runner.kv_files import BlockFiles, open_block

logger = logging.getLogger(__name__)

BLOCK, STATE = b"b", b"s"
REPLY_SECONDS = 5.0
"""Silence after which a consumer gives a connection up."""
DIAL_SECONDS = 0.5
AGAIN_SECONDS = 2.0
"""Pause after a failed connection. Loads fail meanwhile, and are computed."""
AHEAD = 8
"""Blocks that a consumer asks for at a time."""
_REPLY = struct.pack("@ll", int(REPLY_SECONDS), 0)
_HEAD = struct.Struct(">QQ")


class Peer(NamedTuple):
    """The other end, and what this engine's blocks depend on (see `kv_facts`)."""

    address: tuple[str, int]
    key: bytes
    facts: Mapping[str, str]


def refusal(own: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Return why two engines cannot share blocks; None if they can."""
    for name, value in own.items():
        if other.get(name) != value:
            return f"its {name} is {other.get(name)}, and here it is {value}"
    return None


class BlockServer:
    """Sends the blocks of files to consumers, each in its own thread.

    Args:
        peer: its address is where to listen.
        files: by kind.

    Raises:
        OSError: the address is in use, or not one of this machine.
    """

    def __init__(self, peer: Peer, files: Mapping[bytes, BlockFiles]) -> None:
        self._peer = peer
        self._files = files
        self._doorman = handshake.Doorman(*peer.address, peer.key)
        self.address = self._doorman.address
        self._closed = False
        self._connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="kv-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._closed = True
        self._thread.join()
        self._doorman.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):  # it has ended itself
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            arrival = self._doorman.next(0.2)
            if arrival is not None:
                threading.Thread(target=self._serve, args=[arrival], daemon=True).start()

    def _serve(self, arrival: handshake.Arrival) -> None:
        connection = arrival.connection
        self._connections.add(connection)
        with connection:
            try:
                facts = msgspec.msgpack.decode(arrival.frame, type=dict[str, str])
                why = refusal(self._peer.facts, facts)
                handshake.send_frame(connection, (why or "").encode())
                if why is not None:
                    logger.warning("refused a consumer at %s: %s", arrival.host, why)
                    return
                connection.settimeout(None)
                while not self._closed:
                    wanted = handshake.receive_frame(connection)
                    self._send(connection, wanted[:1], wanted[1:])
            except (OSError, handshake.HandshakeError, msgspec.MsgspecError, KeyError) as error:
                logger.debug("a consumer at %s has gone: %s", arrival.host, error)
            self._connections.discard(connection)

    def _send(self, connection: socket.socket, kind: bytes, key: bytes) -> None:
        files = self._files[kind]
        try:
            fd = open_block(files.folder.path(key))
        except OSError:
            connection.sendall(_HEAD.pack(0, 0))
            return
        try:
            begin = files.head_bytes
            length = max(0, os.fstat(fd).st_size - begin)
            checksum = int.from_bytes(os.pread(fd, 8, begin - 8), "little")
            more = socket.MSG_MORE if length else 0  # the head travels with the block
            connection.sendall(_HEAD.pack(length, checksum), more)
            while length:
                sent = os.sendfile(connection.fileno(), fd, begin, length)
                if not sent:
                    raise ConnectionError("a file was cut while it was sent")
                begin, length = begin + sent, length - sent
        finally:
            os.close(fd)


class PeerBlocks:
    """The blocks of a producer. One thread reads.

    Args:
        kind: `BLOCK` or `STATE`.
    """

    def __init__(self, peer: Peer, kind: bytes = BLOCK) -> None:
        self._peer = peer
        self._kind = kind
        self._connection: socket.socket | None = None
        self._again = 0.0
        self._failure = ""
        self._expected: deque[bytes] = deque()
        self._asked: deque[bytes] = deque()

    def check(self) -> None:
        """Connect; raise `ConfigError` if the producer refuses, but not if it is off."""
        try:
            self._connect()
        except handshake.HandshakeError as error:
            raise ConfigError(
                f"The producer at {self._name} refuses this engine: {error}.",
                fix="Start both with the same Quire, model, flags, QUIRE_CLUSTER_KEY and "
                "QUIRE_CLUSTER_TLS.",
                param="kv_transfer_config",
            ) from None
        except OSError as error:
            logger.warning("the producer at %s is not there yet: %s", self._name, error)

    def expect(self, keys: Iterable[bytes]) -> None:
        """Ask for these blocks ahead of their `read`, a few at a time."""
        self._expected.extend(keys)

    def read(self, key: bytes, row: NDArray[np.int64]) -> int:
        """See `BlockSource.read`."""
        try:
            connection = self._connect()
            self._ask(connection, key)
            while self._asked[0] != key:  # its load was cancelled
                self._receive(connection, np.empty_like(row))
            found = self._receive(connection, row)
        except (OSError, handshake.HandshakeError) as error:
            self.close()
            if isinstance(error, OSError):
                raise
            raise ConnectionRefusedError(f"the producer at {self._name}: {error}") from None
        if found is None:
            raise FileNotFoundError(f"the producer at {self._name} has not this block any more")
        return found

    def _ask(self, connection: socket.socket, key: bytes) -> None:
        """Ask for a block, and for some of those behind it, unless that has been done."""
        wanted = [] if key in self._asked else [key]
        if wanted and key in self._expected:
            while self._expected.popleft() != key:
                pass  # its load was cancelled
        while self._expected and len(self._asked) + len(wanted) < AHEAD:
            wanted.append(self._expected.popleft())
        for each in wanted:
            handshake.send_frame(connection, self._kind + each)
            self._asked.append(each)

    def _receive(self, connection: socket.socket, row: NDArray[np.int64]) -> int | None:
        """Receive the first block that was asked for; return its checksum if there is one."""
        head = bytearray(_HEAD.size)
        _fill(connection, memoryview(head))
        self._asked.popleft()
        length, checksum = _HEAD.unpack(head)
        if length == 0:
            return None
        if length != row.nbytes:  # the rest of it would be taken for the next reply
            raise ConnectionError(f"a block of {length} bytes instead of {row.nbytes}")
        _fill(connection, row.data.cast("B"))
        return int(checksum)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Do nothing: the blocks are the producer's."""

    def _connect(self) -> socket.socket:
        """Return the connection; after a failure, fail at once for a while."""
        if self._connection is not None:
            return self._connection
        now = time.monotonic()
        if now < self._again:
            raise ConnectionError(self._failure)
        try:
            frame = msgspec.msgpack.encode(dict(self._peer.facts))
            connection = handshake.dial(
                self._peer.address, self._peer.key, frame, now + DIAL_SECONDS
            )
            connection.settimeout(None)  # else Python polls before each part of a block
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _REPLY)
            why = handshake.receive_frame(connection).decode(errors="replace")
            if why:
                connection.close()
                raise handshake.HandshakeError(why)
        except (OSError, handshake.HandshakeError) as error:
            self._again, self._failure = time.monotonic() + AGAIN_SECONDS, str(error)
            raise
        self._connection = connection
        return connection

    def close(self) -> None:
        """End the connection, and forget what is expected; the next `read` makes another."""
        self._asked.clear()
        self._expected.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _name(self) -> str:
        return f"{self._peer.address[0]}:{self._peer.address[1]}"


def _fill(connection: socket.socket, target: memoryview) -> None:
    while target:
        count = connection.recv_into(target, 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionError("the producer has ended")
        target = target[count:]
