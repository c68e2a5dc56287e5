"""Row 64: a server without a free file descriptor."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import pytest

from quire.server.http import acceptor, protocol
from quire.server.http.acceptor import Acceptor
from quire.server.http.protocol import MAX_SPARES
from quire.server.http.protocol import Site as HttpSite
from tests.faults.sites import HEAD, Client, Passing, Site, site, until

STREAM = {"model": "echo", "prompt": "{", "ignore_eos": True, "stream": True, "max_tokens": 400}


@contextmanager
def no_descriptor() -> Iterator[None]:
    """Leave this process no free file descriptor."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_highest() + 1, limits[1]))
    taken = list[int]()
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)


def _highest() -> int:
    return max(int(each) for each in os.listdir("/proc/self/fd"))


async def unconnected(count: int) -> list[socket.socket]:
    """Return sockets, which take their descriptors now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setblocking(False)
    return sockets


async def connect(plain: socket.socket, port: int) -> Client:
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", port))
    return Client(*await asyncio.open_connection(sock=plain))


async def stream(client: Client) -> None:
    raw = json.dumps(STREAM).encode()
    await client.send(HEAD + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
    await client.answer()


async def ask(client: Client, path: bytes) -> bytes:
    await client.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
    return await client.rest()


async def test_row_64_without_a_descriptor_health_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site(seconds=0.01) as where:
        await where.assert_unharmed()  # imports what it needs
        busy = await where.connect()
        await stream(busy)
        await until(lambda: len(where.connections) == 1)
        plain = await unconnected(2 * MAX_SPARES)
        with no_descriptor():
            clients = [await connect(each, where.port) for each in plain]
            for index, client in enumerate(clients):
                if index % 2:
                    assert (await ask(client, b"/health")).startswith(b"HTTP/1.1 200 ")
                else:
                    answer = await ask(client, b"/v1/models")
                    assert answer.startswith(b"HTTP/1.1 503 ")
                    assert b"no connection left" in answer
        assert (await busy.reader.readline()).strip()
        for each in (*clients, busy):
            each.close()
        await until(lambda: not where.connections)
        await where.assert_unharmed()
    records = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(records) == 1
    assert "Too many open files" in records[0].message
    assert "ulimit -n" in records[0].message


async def test_row_64_an_idle_connection_gives_up_its_descriptor(where: Site) -> None:
    idle = [await where.connect() for _ in range(3)]
    await until(lambda: len(where.connections) == 3)
    (plain,) = await unconnected(1)
    with no_descriptor():
        client = await connect(plain, where.port)
        await client.send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer()).startswith(b"HTTP/1.1 200 ")
        assert await idle[0].rest() == b""
        assert len(where.connections) == 3  # the oldest one made room
    for each in (*idle, client):
        each.close()
    await until(lambda: not where.connections)
    await where.assert_unharmed()


async def test_row_64_silent_clients_hold_no_spare_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "SPARE_SECONDS", 0.05)
    async with site(seconds=0.01) as where:
        busy = await where.connect()
        await stream(busy)
        plain = await unconnected(3 * MAX_SPARES + 1)
        with no_descriptor():
            silent = [await connect(each, where.port) for each in plain[1:]]
            client = await connect(plain[0], where.port)
            assert (await ask(client, b"/health")).startswith(b"HTTP/1.1 200 ")
        for each in (*silent, client, busy):
            each.close()
        await until(lambda: not where.connections)
        await where.assert_unharmed()


@pytest.mark.parametrize("limit", ["SPARE_SECONDS", "RECEIVE_SECONDS"])
async def test_clients_that_begin_no_tls_are_soon_disconnected(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """asyncio gives them 60 s, and they count as no connection meanwhile."""
    monkeypatch.setattr(acceptor, limit, 0.05)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepts = Acceptor(HttpSite(None), socket.create_server(("", 0)), 10, tls)  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    accepts._serve(theirs, is_spare=limit == "SPARE_SECONDS")
    client = Client(*await asyncio.open_connection(sock=ours))
    async with asyncio.timeout(30):
        assert await client.rest() == b""
    client.close()
    accepts.close()


class Refusing(socket.socket):
    """A listening socket that the system lets accept nothing."""

    num_attempts = 0

    def accept(self) -> NoReturn:
        self.num_attempts += 1
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


async def test_attempts_to_accept_are_few_when_nothing_helps(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    pass_time: Passing,
) -> None:
    monkeypatch.setattr(acceptor, "PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(acceptor, "LOG_SECONDS", 1e6)
    listener = Refusing()
    listener.bind(("127.0.0.1", 0))
    accepts = Acceptor(HttpSite(None), listener, 10, None)  # type: ignore[arg-type]
    (plain,) = await unconnected(1)
    client = await connect(plain, listener.getsockname()[1])
    for num_attempts in (1, 2):
        await until(lambda n=num_attempts: listener.num_attempts == n)
        for _ in range(20):
            await asyncio.sleep(0)
        assert listener.num_attempts == num_attempts
        await pass_time(3600.0)
    client.close()
    accepts.close()
    assert len(caplog.records) == 1  # for two attempts
    assert "Cannot allocate memory" in caplog.records[0].message
    assert "ulimit" not in caplog.records[0].message
