"""Connections between the machines of an engine: both ends prove that they have the same key.

    dialler    MAGIC, its nonce
    listener   MAGIC, its nonce
    dialler    HMAC(key, "dialler", both nonces)
    listener   HMAC(key, "listener", both nonces), or zeros if the dialler has another key

Then each message is four bytes of length and a frame; once both sides agree, the connection is a
plain stream. The key is never sent, and a stranger gets no proof against which it can test guesses.
What follows is neither encrypted nor signed, so it needs a network that nobody else can write to.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger(__name__)

MAGIC = b"QUIRE/2\n"
GREET_SECONDS = 5.0
"""How long a new connection may take to prove its key and to say what it is for."""
MOST_GREETED = 64
"""Connections that may be greeted at the same time; further ones are closed."""
MOST_BYTES = 4 * 2**20
"""Length of the longest frame of a handshake."""
DIAL_EVERY = 0.1
REMIND_SECONDS = 10.0
_NONCE, _PROOF = 32, 32
_LENGTH = struct.Struct(">I")
_KEEPALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 8_000),
)
"""A peer whose machine or network is gone ends the connection within about 8 s."""


class HandshakeError(Exception):
    """The other end is no node of this engine; says why."""


class Arrival(NamedTuple):
    """A connection whose other end has the key, its first frame, and its address."""

    connection: socket.socket
    frame: bytes
    host: str


class Doorman:
    """Listens, and greets each connection in its own thread, so that no silent one delays others.

    Attributes:
        address: where it listens.

    Raises:
        OSError: the address is not one of this machine, or in use.
    """

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._key = key
        self._arrivals: queue.SimpleQueue[Arrival | HandshakeError] = queue.SimpleQueue()
        self._slots = threading.BoundedSemaphore(MOST_GREETED)
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="doorman", daemon=True).start()

    def next(self, seconds: float) -> Arrival | HandshakeError | None:
        """Return the next connection, or why one was refused; None if none comes in time."""
        try:
            return self._arrivals.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop listening, and drop the connections that nobody has asked for. May be repeated."""
        with contextlib.suppress(OSError):  # it was closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # frees the port, although a thread accepts
        self._listener.close()
        while (arrival := self.next(0.0)) is not None:
            if isinstance(arrival, Arrival):
                arrival.connection.close()

    def _accept(self) -> None:
        self._listener.settimeout(0.2)  # closing a socket does not wake its accept
        while self._listener.fileno() >= 0:
            try:
                connection, address = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            args = connection, str(address[0])
            threading.Thread(target=self._greet, args=args, daemon=True).start()

    def _greet(self, connection: socket.socket, host: str) -> None:
        try:
            set_options(connection)
            connection.settimeout(GREET_SECONDS)
            end = time.monotonic() + GREET_SECONDS
            nonce = _first(connection, end)
            own = os.urandom(_NONCE)
            connection.sendall(MAGIC + own)
            if not hmac.compare_digest(
                _exactly(connection, _PROOF, end), _proof(self._key, b"dialler", nonce, own)
            ):
                connection.sendall(bytes(_PROOF))
                raise HandshakeError("it has another key")
            connection.sendall(_proof(self._key, b"listener", nonce, own))
            frame = receive_frame(connection, end)
            connection.settimeout(GREET_SECONDS)
        except (OSError, HandshakeError) as error:
            connection.close()
            self._arrivals.put(HandshakeError(f"a connection from {host} was closed: {error}"))
        else:
            self._arrivals.put(Arrival(connection, frame, host))
        finally:
            self._slots.release()


class Reminder:
    """When to log again what this machine still waits for.

    Args:
        patience: seconds until the first time; None: as between all others.
    """

    def __init__(self, patience: float | None = None) -> None:
        self._next = time.monotonic() + (REMIND_SECONDS if patience is None else patience)

    def is_due(self) -> bool:
        """Return whether it is time; ask often."""
        if time.monotonic() < self._next:
            return False
        self._next += REMIND_SECONDS
        return True


def dial(
    address: tuple[str, int],
    key: bytes,
    frame: bytes,
    deadline: float,
    check: Callable[[], None] = lambda: None,
) -> socket.socket:
    """Return a connection to a `Doorman`, after its key was checked and `frame` was sent.

    While nobody listens, it dials again until `deadline`, on the monotonic clock.

    Args:
        check: called before it dials again; may raise.

    Raises:
        HandshakeError: the other end has another key, or is no doorman.
        TimeoutError: nobody answered in time.
    """
    reminder = Reminder()
    while True:
        try:
            return _dial_once(address, key, frame)
        except OSError as error:  # nobody listens yet, or not any more
            if time.monotonic() > deadline:
                raise TimeoutError(f"{at(address)} does not answer: {error}") from None
            check()
            if reminder.is_due():
                logger.warning("waiting for %s: %s", at(address), error)
            time.sleep(DIAL_EVERY)


def _dial_once(address: tuple[str, int], key: bytes, frame: bytes) -> socket.socket:
    with contextlib.ExitStack() as held:
        connection = held.enter_context(socket.create_connection(address, GREET_SECONDS))
        set_options(connection)
        nonce, end = os.urandom(_NONCE), time.monotonic() + GREET_SECONDS
        connection.sendall(MAGIC + nonce)
        other = _first(connection, end)
        connection.sendall(_proof(key, b"dialler", nonce, other))
        if not hmac.compare_digest(
            _exactly(connection, _PROOF, end), _proof(key, b"listener", nonce, other)
        ):
            raise HandshakeError(f"{at(address)} has another key")
        connection.settimeout(GREET_SECONDS)
        send_frame(connection, frame)
        held.pop_all()
    return connection


def at(address: tuple[str, int]) -> str:
    """Return host and port as users write them."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def send_frame(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(frame)) + frame)


def receive_frame(connection: socket.socket, end: float | None = None) -> bytes:
    """Return the next frame.

    Args:
        end: when it must be there, on the monotonic clock; None leaves it to the socket.

    Raises:
        HandshakeError: it is too long.
        OSError: the connection ended, or nothing came in time.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, end))
    if length > MOST_BYTES:
        raise HandshakeError(f"it sent a frame of {length} bytes; at most {MOST_BYTES} are allowed")
    return _exactly(connection, length, end)


def set_options(connection: socket.socket) -> None:
    """Send at once, and notice within seconds that the other machine is gone."""
    for level, name, value in _KEEPALIVE:
        connection.setsockopt(level, name, value)


def _first(connection: socket.socket, end: float) -> bytes:
    """Return the other end's nonce."""
    if _exactly(connection, len(MAGIC), end) != MAGIC:
        raise HandshakeError("it is no node of a Quire engine, or of an older version")
    return _exactly(connection, _NONCE, end)


def _exactly(connection: socket.socket, count: int, end: float | None) -> bytes:
    data = bytearray()
    while len(data) < count:
        if end is not None:  # a peer that sends a byte now and then must not stay
            connection.settimeout(max(1e-3, end - time.monotonic()))
        if not (more := connection.recv(count - len(data))):
            raise ConnectionError("the connection ended")
        data += more
    return bytes(data)


def _proof(key: bytes, role: bytes, dialler: bytes, listener: bytes) -> bytes:
    return hmac.digest(key, role + dialler + listener, "sha256")
