"""Read an image from its address: a data URL, and where the operator allows it http(s) or a file.

A server must not be made to read what its client cannot. So hosts and folders are listed, every
address that a name resolves to must be public, the connection goes to the address that was checked,
and each redirect is checked anew. Time, bytes and redirects are bounded.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, unquote_to_bytes, urljoin, urlsplit

from quire.core.errors import EngineDeadError, InvalidRequestError
from quire.frontend.images.names import Names
from quire.frontend.images.prepare import MAX_BYTES, refused
from quire.frontend.workers.pool import CLIENT
from quire.frontend.workers.threads import DaemonThreads
from quire.frontend.workers.turns import Turns

SECONDS = 10.0
"""For one image, with its redirects."""
MOST_REDIRECTS = 3
_FETCHES = 8
"""Images that are fetched at a time."""
_SPARE = 4
"""Of these, so many are for clients that fetch none yet."""
_PORTS = {"http": 80, "https": 443}
_CHUNK = 2**16
_LONGEST_ADDRESS = 8192


class Wire:
    """The connection of a fetch. `cut` ends what its thread waits for.

    A host that sends a byte now and then resets a socket's timeout, so it could hold a thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end: socket.socket | None = None
        self._cut = False

    def set(self, connection: socket.socket) -> None:
        """Replace the connection, before TLS takes it."""
        with self._lock:
            if self._cut:
                raise TimeoutError
            self._close()
            self._end = connection.dup()

    def cut(self) -> None:
        """End the connection and all later ones. Harmless when repeated."""
        with self._lock:
            self._cut = True
            self._close()

    def _close(self) -> None:
        if self._end is not None:
            with suppress(OSError):  # it has ended
                self._end.shutdown(socket.SHUT_RDWR)
            self._end.close()
            self._end = None


class Media:
    """Reads images for requests.

    Args:
        domains: hosts that may be fetched from; "" allows none.
        folder: where files may be read; None allows none.
    """

    def __init__(self, domains: str = "", folder: str | None = None) -> None:
        self._domains = frozenset(filter(None, map(_host_name, domains.split(","))))
        self._folder = None if folder is None else Path(folder).expanduser().resolve()
        self._threads = DaemonThreads(_FETCHES, "media")
        self._turns = Turns(_FETCHES, _SPARE)

    def shutdown(self) -> None:
        self._threads.shutdown()
        self._turns.fail(EngineDeadError("The engine has been shut down."))

    async def load(self, source: Any) -> Any:
        """Return the bytes behind an address; other sources are returned unchanged.

        Raises:
            InvalidRequestError: the address is refused, or does not answer in time.
        """
        if not isinstance(source, str):
            return source
        if source[:5].lower() == "data:":
            return _data(source)
        url = _split(source)
        if url.scheme == "file":
            return await self._in_turn(lambda: self._file(url))
        if url.scheme in _PORTS:
            self._check_host(url)
            wire = Wire()
            try:
                return await self._in_turn(lambda: self._fetch(url, wire), SECONDS)
            except TimeoutError:
                raise refused(f"{url.hostname} did not send it within {SECONDS:g} s") from None
            finally:
                wire.cut()
        raise refused(
            f"its address begins with {url.scheme[:16]!r}; it may begin with data, http, https or "
            "file"
        )

    async def _in_turn(self, work: Callable[[], bytes], seconds: float | None = None) -> bytes:
        """Return what `work` returns; clients take turns.

        A turn ends with the work. A client that leaves during a look-up of a name and asks again
        could hold all threads.
        """
        client = CLIENT.get()
        await self._turns.take(client)
        async with asyncio.timeout(seconds):
            return await self._threads.run(work, lambda: self._turns.give(client))

    def _file(self, url: SplitResult) -> bytes:
        """Return a file below the folder; links must stay there, too."""
        if self._folder is None:
            raise refused("files are not read", "Start with --allowed-local-media-path.")
        if url.netloc not in ("", "localhost"):
            raise refused("a file:// address names another host")
        try:
            path = Path(unquote(url.path, errors="strict")).resolve(strict=True)
            if not path.is_relative_to(self._folder):
                raise refused("the file is not below --allowed-local-media-path")
            # Not the end of a pipe, which may never come.
            found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with open(found, "rb") as file:
                if not stat.S_ISREG(os.fstat(found).st_mode):
                    raise refused("it is no regular file")
                return _bounded(iter(lambda: file.read(_CHUNK), b""))
        except InvalidRequestError:
            raise
        except (OSError, ValueError, RuntimeError):
            raise refused("there is no such file below --allowed-local-media-path") from None

    def _fetch(self, url: SplitResult, wire: Wire) -> bytes:
        from http.client import HTTPException  # it imports `email`: 10 ms of each start

        until = time.monotonic() + SECONDS
        for _ in range(MOST_REDIRECTS + 1):
            self._check_host(url)
            try:
                found = _get(url, until, wire)
            except InvalidRequestError:
                raise
            except (OSError, HTTPException, ValueError) as error:
                raise refused(f"{url.hostname} did not send it ({type(error).__name__})") from None
            if isinstance(found, bytes):
                return found
            url = _split(urljoin(url.geturl(), found))
            if url.scheme not in _PORTS:
                raise refused("it redirects to an address that is not http")
        raise refused(f"there are more than {MOST_REDIRECTS} redirects")

    def _check_host(self, url: SplitResult) -> None:
        if not self._domains:
            raise refused(
                "images are not fetched", "Send a data URL, or start with --allowed-media-domains."
            )
        if url.username is not None or url.password is not None:
            raise refused("its address has a user name")
        if _host_name(url.hostname or "") not in self._domains:
            raise refused(
                f"the host {(url.hostname or '')[:100]!r} is not among --allowed-media-domains"
            )


def _data(text: str) -> bytes:
    """Return the content of a data URL."""
    head, comma, body = text[5:].partition(",")
    if not comma:
        raise refused("a data URL has a comma before its content")
    if len(body) > 2 * MAX_BYTES:
        raise refused(f"it is larger than {MAX_BYTES} bytes")
    try:
        content = unquote_to_bytes(body)
        if head.rpartition(";")[2].strip().lower() == "base64":
            content = b"".join(content.split())  # lines, and no end, as browsers accept
            content = base64.b64decode(content + b"=" * (-len(content) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise refused("its data URL is no base64") from None
    return _bounded([content])


def _split(address: str) -> SplitResult:
    """Return the parts of an address that every reader splits in the same way."""
    if len(address) > _LONGEST_ADDRESS:
        raise refused(f"its address is longer than {_LONGEST_ADDRESS} characters")
    if not address.isascii() or not address.isprintable() or set(address) & set(" \\"):
        raise refused("its address has characters that must be encoded with %")
    try:
        url = urlsplit(address)
        _ = url.port
    except ValueError:
        raise refused("its address is malformed") from None
    return url


def _get(url: SplitResult, until: float, wire: Wire) -> bytes | str:
    """Return the content, or where it has moved to."""
    from http.client import HTTPConnection

    host, port = url.hostname or "", url.port or _PORTS[url.scheme]
    raw = _connect(host, port, until)
    try:
        wire.set(raw)
        raw.settimeout(_left(until))  # each address had only a part of it
        if url.scheme == "https":
            raw = ssl.create_default_context().wrap_socket(raw, server_hostname=host)
        connection = HTTPConnection(host, port)
        connection.sock = raw
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("GET", target, headers={"Accept": "image/*", "Connection": "close"})
        response = connection.getresponse()
        if response.status in (301, 302, 303, 307, 308):
            return response.headers.get("Location") or ""
        if response.status != 200:
            raise refused(f"{host} answered with status {response.status}")

        def chunks() -> Iterable[bytes]:
            while True:
                raw.settimeout(_left(until))
                if not (chunk := response.read1(_CHUNK)):
                    return
                yield chunk

        return _bounded(chunks())
    finally:
        raw.close()


_NAMES = Names()
"""Only hosts of --allowed-media-domains are looked up."""


def _connect(host: str, port: int, until: float) -> socket.socket:
    """Connect to a host, all of whose addresses must be public."""
    found = _NAMES.addresses(host, _left(until))
    for address in found:
        if not is_public(address):
            raise refused(f"{host} is an address of a private network")
    # The addresses that were checked: a second look-up could return others.
    for number, address in enumerate(found):
        try:
            timeout = _left(until) / (len(found) - number)
            return socket.create_connection((address, port), timeout=timeout)
        except OSError:
            if number + 1 == len(found):
                raise
    raise OSError("the host has no address")


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        # An IPv4 address inside one of IPv6 leads to the same machine.
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if ip.is_site_local:
            return False
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _left(until: float) -> float:
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left


def _bounded(chunks: Iterable[bytes]) -> bytes:
    found = bytearray()
    for chunk in chunks:
        found += chunk
        if len(found) > MAX_BYTES:
            raise refused(f"it is larger than {MAX_BYTES} bytes")
    return bytes(found)


def _host_name(host: str) -> str:
    return host.strip().rstrip(".").lower()
