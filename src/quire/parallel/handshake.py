"""Connections between the machines of an engine: both ends prove that they have the same key.

    dialler    MAGIC or TLS_MAGIC, its nonce
    listener   MAGIC or TLS_MAGIC, its nonce
    dialler    HMAC(key, "dialler", both nonces)
    listener   HMAC(key, "listener", both nonces), or zeros if the dialler has another key

Then each message is four bytes of length and a frame; once both sides agree, the connection is a
plain stream. The key is never sent, and a stranger gets no proof against which it can test guesses.
What follows the proofs is encrypted (`sealed`) if `QUIRE_CLUSTER_TLS` is set on both. Otherwise it
is not even signed, so it needs a network that nobody else can write to.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import math
import os
import queue
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from ipaddress import ip_address
from typing import NamedTuple

from quire.parallel.sealed import Seal, own_seal

logger = logging.getLogger(__name__)

MAGIC, TLS_MAGIC = b"QUIRE/2\n", b"QUIRE/2s"
GREET_SECONDS = 5.0
"""How long a new connection may take to prove its key and to say what it is for."""
MOST_GREETED = 64
"""Connections that are greeted at the same time. A further one ends the oldest: machines with the
key need milliseconds, and silent strangers must not keep them out."""
MOST_LOGGED, LOG_SECONDS = 10, 60.0
"""Refused connections that may be logged in this time; of others only the number is."""
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

    Some of the connections that it refuses are logged: strangers must not fill the log.

    Attributes:
        address: where it listens.

    Raises:
        OSError: the address is not one of this machine, or in use.
        ConfigError: see `Seal`.
    """

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._key = key
        self._seal = own_seal()
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._greeted: list[socket.socket] = []
        self._logged: deque[float] = deque([-math.inf] * MOST_LOGGED, MOST_LOGGED)
        self._unlogged = 0
        self._lock = threading.Lock()
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self._listener.settimeout(0.2)  # closing a socket does not wake its accept
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="doorman", daemon=True).start()

    def next(self, seconds: float) -> Arrival | None:
        """Return the next connection; None if none comes in time."""
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
            arrival.connection.close()

    def _accept(self) -> None:
        while self._listener.fileno() >= 0:
            try:
                connection, address = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed meanwhile; or the stranger is gone, or no descriptor is left
                time.sleep(DIAL_EVERY)
                continue
            if len(self._greeted) == MOST_GREETED:
                with contextlib.suppress(OSError, IndexError):  # it has ended itself
                    self._greeted.pop(0).shutdown(socket.SHUT_RDWR)
            self._greeted.append(connection)
            args = connection, str(address[0])
            threading.Thread(target=self._greet, args=args, daemon=True).start()

    def _greet(self, stranger: socket.socket, host: str) -> None:
        connection, arrival, why = stranger, None, ""
        try:
            set_options(stranger)
            stranger.settimeout(GREET_SECONDS)
            end = time.monotonic() + GREET_SECONDS
            self._prove(stranger, end)
            connection = _sealed(self._seal, stranger, end, listens=True)
            arrival = Arrival(connection, receive_frame(connection, end), host)
            connection.settimeout(GREET_SECONDS)
        except (OSError, HandshakeError) as error:
            why = str(error)
        try:
            self._greeted.remove(stranger)
        except ValueError:
            why = "newer ones came"
        if arrival is not None and not why:
            self._arrivals.put(arrival)
        else:
            connection.close()
            self._log(host, why)

    def _prove(self, stranger: socket.socket, end: float) -> None:
        """Compare keys; raise `HandshakeError` if they differ."""
        magic, nonce = _first(stranger, end)
        own = os.urandom(_NONCE)
        stranger.sendall(_magic(self._seal) + own)
        _check_sealed(self._seal, magic)
        proof = _exactly(stranger, _PROOF, end)
        if not hmac.compare_digest(proof, _proof(self._key, b"dialler", nonce, own)):
            stranger.sendall(bytes(_PROOF))
            raise HandshakeError("it has another key")
        stranger.sendall(_proof(self._key, b"listener", nonce, own))

    def _log(self, host: str, why: str) -> None:
        with self._lock:
            if (now := time.monotonic()) < self._logged[0] + LOG_SECONDS:
                self._unlogged += 1
                return
            more = f" ({self._unlogged} others were, too)" if self._unlogged else ""
            self._logged.append(now)
            self._unlogged = 0
        logger.warning("a connection from %s was closed: %s%s", host, why, more)


class Reminder:
    """When to log again what this machine still waits for.

    Args:
        patience: seconds until the first time; None: as between all others.
    """

    def __init__(self, patience: float | None = None) -> None:
        self._next = time.monotonic() + (REMIND_SECONDS if patience is None else patience)

    def is_due(self) -> bool:
        """Return whether it is time; ask often."""
        if (now := time.monotonic()) < self._next:
            return False
        self._next = now + REMIND_SECONDS
        return True


def dial(
    address: tuple[str, int],
    key: bytes,
    frame: bytes,
    deadline: float,
    check: Callable[[], None] = lambda: None,
    name: str | None = None,
) -> socket.socket:
    """Return a connection to a `Doorman`, after its key was checked and `frame` was sent.

    While nobody listens, it dials again until `deadline`, on the monotonic clock.

    Args:
        check: called before it dials again; may raise.
        name: what the log calls the listener; default: its address.

    Raises:
        HandshakeError: the other end has another key, or is no doorman; begins with "it".
        TimeoutError: nobody answered in time.
        ConfigError: see `Seal`.
    """
    reminder, seal = Reminder(), own_seal()
    while True:
        try:
            return _dial_once(address, key, frame, seal)
        except OSError as error:  # nobody listens yet, or not any more
            if time.monotonic() > deadline:
                raise TimeoutError(f"{at(address)} does not answer: {error}") from None
            check()
            if reminder.is_due():
                why = error.strerror or error
                logger.warning("waiting for %s: %s. Is it started?", name or at(address), why)
            time.sleep(DIAL_EVERY)


def _dial_once(
    address: tuple[str, int], key: bytes, frame: bytes, seal: Seal | None
) -> socket.socket:
    connection = socket.create_connection(address, GREET_SECONDS)
    try:
        set_options(connection)
        nonce, end = os.urandom(_NONCE), time.monotonic() + GREET_SECONDS
        connection.sendall(_magic(seal) + nonce)
        magic, other = _first(connection, end)
        _check_sealed(seal, magic)
        connection.sendall(_proof(key, b"dialler", nonce, other))
        if not hmac.compare_digest(
            _exactly(connection, _PROOF, end), _proof(key, b"listener", nonce, other)
        ):
            raise HandshakeError("it has another key")
        connection = _sealed(seal, connection, end, listens=False)
        connection.settimeout(GREET_SECONDS)
        send_frame(connection, frame)
    except BaseException:
        connection.close()
        raise
    return connection


def at(address: tuple[str, int]) -> str:
    """Return host and port as users write them."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(address: tuple[str, int]) -> str:
    """Return `at`, with a hint if other machines cannot reach it."""
    host = address[0]
    with contextlib.suppress(ValueError):  # a name
        if ip_address(host).is_loopback:
            return f"{at(address)} (which only this machine reaches; see --master-addr)"
    return at(address)


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


def _magic(seal: Seal | None) -> bytes:
    return MAGIC if seal is None else TLS_MAGIC


def _first(connection: socket.socket, end: float) -> tuple[bytes, bytes]:
    """Return the other end's magic and nonce."""
    if (magic := _exactly(connection, len(MAGIC), end)) not in {MAGIC, TLS_MAGIC}:
        raise HandshakeError("it is no node of a Quire engine, or of an older version")
    return magic, _exactly(connection, _NONCE, end)


def _check_sealed(seal: Seal | None, magic: bytes) -> None:
    """Raise `HandshakeError` unless both ends encrypt, or none does."""
    if magic != _magic(seal):
        has = ("has", "has not") if seal is None else ("has no", "has")
        raise HandshakeError(f"it {has[0]} QUIRE_CLUSTER_TLS, and this machine {has[1]}")


def _sealed(
    seal: Seal | None, connection: socket.socket, end: float, *, listens: bool
) -> socket.socket:
    """Return the connection, or an encrypted one over it."""
    try:
        return connection if seal is None else seal.wrap(connection, end, listens=listens)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
    except ssl.SSLError as error:  # the other end says what it refuses
        why = str(error.reason).lower().replace("_", " ")
    raise HandshakeError(
        f"it has another certificate in QUIRE_CLUSTER_TLS, or an invalid one: {why}"
    )


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
