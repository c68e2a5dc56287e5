"""Encryption between machines: TLS 1.3 behind an ordinary socket.

    process or worker ── socket pair ── two threads of the process that connected ── TLS ── network

Workers inherit sockets, but no process can inherit a TLS connection. So the process that connected
holds it, and passes bytes between it and a pair of sockets. When either side ends, so does the
other.

`QUIRE_CLUSTER_TLS` names a PEM file with a private key and its certificate, the same on all
machines. Each end shows this certificate, and accepts only it (or one that it has signed).
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from quire.core.errors import ConfigError
from quire.system import env

CHUNK = 2**18
"""Bytes that are encrypted at a time."""
BUFFER = 2**20
"""Bytes that the socket pair holds. With Linux's 208 KiB, threads wait twice as often."""
_RECORD = 2**14
_ACCEPTED = b"\n"


class Seal:
    """This machine's certificate.

    Args:
        pem: the file.

    Raises:
        ConfigError: the file has no key and certificate.
    """

    def __init__(self, pem: str) -> None:
        self._dials = _context(pem, listens=False)
        self._listens = _context(pem, listens=True)

    def wrap(self, connection: socket.socket, end: float, *, listens: bool) -> SealedSocket:
        """Return a socket whose bytes go through TLS; it owns the connection.

        Args:
            end: when the other machine must have shown its certificate, on the monotonic clock.

        Raises:
            ssl.SSLError: it has another one.
            OSError: the connection ended, or nothing came in time.
        """
        tls = _Tls(connection, self._listens if listens else self._dials, listens=listens)
        tls.agree(end)
        return tls.start()


def own_seal() -> Seal | None:
    """Return what `QUIRE_CLUSTER_TLS` names; None if it is not set. Raises as `Seal`."""
    pem = env.cluster_tls()
    return None if pem is None else _seal(pem)


_seal = cache(Seal)
"""Reads the file once: a process that connects again must not fail because it has gone."""


def _context(pem: str, *, listens: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is the machines' own
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(pem, password="")  # else a key with a password asks the terminal
        context.load_verify_locations(pem)
    except OSError as error:
        raise ConfigError(
            f"QUIRE_CLUSTER_TLS is {pem!r}, which cannot be read as a private key without a "
            f"password and its certificate: {error}.",
            fix="Make the file as docs/cluster.md shows, and copy it to all machines.",
            param="QUIRE_CLUSTER_TLS",
        ) from None
    return context


class SealedSocket(socket.socket):
    """The process's end of the socket pair; its own address is the connection's."""

    address: Any = None

    def getsockname(self) -> Any:
        return self.address


class _Tls:
    """A TLS connection: one thread encrypts while another decrypts."""

    def __init__(self, far: socket.socket, context: ssl.SSLContext, *, listens: bool) -> None:
        self._far = far
        self._listens = listens
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=listens)
        self._lock = threading.Lock()
        """Of `_tls`: OpenSSL does not let two threads use a connection at the same time."""

    def agree(self, end: float) -> None:
        """Exchange certificates; raises as `Seal.wrap`."""
        self._until_done(self._tls.do_handshake, end)
        if self._listens:
            self._far.sendall(self._encrypted(_ACCEPTED))
        else:  # TLS 1.3 would tell the dialler later that its certificate was refused
            self._until_done(lambda: self._tls.read(len(_ACCEPTED)), end)

    def _until_done(self, act: Callable[[], object], end: float) -> None:
        while True:
            try:
                act()
            except ssl.SSLWantReadError:
                pass
            else:
                return
            finally:
                self._far.sendall(self._outgoing.read())  # also the reason of an error
            self._far.settimeout(max(1e-3, end - time.monotonic()))
            if not (data := self._far.recv(CHUNK)):
                raise ConnectionError("the connection ended")
            self._incoming.write(data)

    def start(self) -> SealedSocket:
        """Return the process's end."""
        self._far.settimeout(None)
        self._near, end = socket.socketpair()
        for each in (self._near, end):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        threading.Thread(target=self._run, name="tls", daemon=True).start()
        sealed = SealedSocket(fileno=end.detach())
        sealed.address = self._far.getsockname()
        return sealed

    def _run(self) -> None:
        inward = threading.Thread(target=self._pass, args=[self._decrypt_all], daemon=True)
        inward.start()
        self._pass(self._encrypt_all)
        inward.join()
        self._near.close()
        self._far.close()

    def _pass(self, direction: Callable[[], None]) -> None:
        """Pass bytes on until an end or an error, and end both sides. What came before still
        arrives."""
        with suppress(OSError):
            direction()
        for end in (self._near, self._far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _encrypt_all(self) -> None:
        room = memoryview(bytearray(CHUNK))
        while count := self._near.recv_into(room):
            self._far.sendall(self._encrypted(room[:count]))

    def _encrypted(self, data: bytes | memoryview) -> bytes:
        with self._lock:
            while data:
                data = data[self._tls.write(data) :]
            return self._outgoing.read()

    def _decrypt_all(self) -> None:
        room, count = memoryview(bytearray(CHUNK)), 0
        while True:  # the first bytes may have come with the handshake
            ended, plain = self._decrypted(room[:count])
            self._near.sendall(plain)
            if ended or not (count := self._far.recv_into(room)):
                return

    def _decrypted(self, sealed: memoryview) -> tuple[bool, bytes]:
        """Return whether the other end said that nothing follows, and the plain bytes."""
        parts: list[bytes] = []
        with self._lock:
            self._incoming.write(sealed)
            try:
                while part := self._tls.read(_RECORD):
                    parts.append(part)
            except ssl.SSLWantReadError:
                return False, b"".join(parts)
        return True, b"".join(parts)
