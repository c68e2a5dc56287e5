"""The address that `quire serve` listens on: whether it may, and whether it is free.

This is checked before anything starts, so the module imports nothing large.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TextIO

from quire.core.errors import ConfigError


def check_exposure(host: str, *, is_allowed: bool) -> None:
    """Raise `ConfigError` if the network could use the server without a key.

    Args:
        is_allowed: there is a key, or the user allows that.
    """
    if is_allowed or _is_loopback(host):
        return
    raise ConfigError(
        f"--host {host} is open to the network and no API key is set.",
        fix="Set --api-key (or QUIRE_API_KEY), or add --allow-no-key.",
        param="host",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """Return a TCP socket bound to `host` and `port` (0: any free port), not listening yet.

    Raises:
        ConfigError: the address is not this machine's, or the port is in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(
            f"--host {host} is not an address: {error.strerror}.", param="host"
        ) from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    # A restart can then use the port while old connections are still closing.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise bind_error(host, port, error) from None
    return listener


def bind_path(path: str) -> socket.socket:
    """Return a Unix socket bound to `path`, not listening yet; replaces one that nobody serves.

    Raises:
        ConfigError: a server listens there or loads its model, or the path cannot be used.
    """
    if not path:  # Linux would choose an address that every user can connect to
        raise ConfigError("--uds is empty.", fix="Give it a path.", param="uds")
    listener = _PathListener(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.claim(path)
        if _is_left_over(path):
            os.unlink(path)
        listener.bind(path)
    except OSError as error:
        listener.close()
        in_use = error.errno in (errno.EADDRINUSE, errno.EWOULDBLOCK)
        why = "it is in use" if in_use else error.strerror or str(error)
        raise ConfigError(
            f"Cannot listen on --uds {path}: {why}.", fix="Choose another path.", param="uds"
        ) from None
    return listener


class _PathListener(socket.socket):
    """Holds a lock file from `claim` until it listens.

    Until then no connection tells other servers that the path is taken. A lock ends with its
    process, so a file that is left over does no harm.
    """

    _lock: TextIO | None = None

    def claim(self, path: str) -> None:
        """Take the lock; raise `OSError` if another server has it."""
        lock = open(f"{path}.lock", "a")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        self._lock = lock

    def listen(self, *args: int) -> None:
        super().listen(*args)
        self._release()

    def close(self) -> None:
        self._release()
        super().close()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):
                os.unlink(lock.name)
            lock.close()


@contextmanager
def at_path(path: str) -> Generator[socket.socket, None, None]:
    """Return `bind_path(path)`; remove its file at the end, unless another server has replaced it.

    A restart may overlap: the next server binds the path once this one listens no more.
    """
    with bind_path(path) as bound:
        ours = _identity(path)
        try:
            yield bound
        finally:
            with suppress(OSError):
                if _identity(path) == ours:
                    os.unlink(path)


def _identity(path: str) -> tuple[int, int, int]:
    """Return what tells a file from later ones, which may have its inode."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _is_left_over(path: str) -> bool:
    """Return whether `path` is a socket on which no process listens."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False


def bind_error(host: str, port: int, error: OSError) -> ConfigError:
    """Say why the server cannot listen there."""
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"Port {port} of {host} is in use.",
            fix="Stop what listens there, or choose another port with --port.",
            param="port",
        )
    return ConfigError(f"Cannot listen on {host} port {port}: {error.strerror}.", param="port")
