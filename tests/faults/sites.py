"""The application over the echo model, at an address; and raw connections to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx

from quire.server.http.server import HttpServer
from tests.listening import listening
from tests.unit.server.fake_engine import Running, running

PATIENCE = 120.0
Passing = Callable[[float], Awaitable[None]]
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send what the server takes."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            pass

    async def rest(self) -> bytes:
        """All that comes until the connection is closed, or reset."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(PATIENCE):
                while data := await self.reader.read(65536):
                    parts.append(data)
        except ConnectionError:
            pass
        return b"".join(parts)

    async def answer(self) -> bytes:
        """The head of an answer."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readuntil(b"\r\n\r\n")

    def close(self) -> None:
        self.writer.close()


class Site:
    """The application over the echo model, at an address."""

    def __init__(self, app: Running, port: int, server: HttpServer) -> None:
        self.app = app
        self.port = port
        self.connections = server.site.connections

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port))

    async def received(self, count: int) -> None:
        """Wait until its only connection has brought so many bytes."""
        await until(lambda: [each._num_received for each in self.connections] == [count])

    async def get(self, path: str, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get(f"http://127.0.0.1:{self.port}{path}", headers=headers)

    async def assert_unharmed(self) -> None:
        assert (await self.get("/health")).status_code == 200
        answer = await self.app.complete(max_tokens=3)
        assert answer.json()["choices"][0]["text"] == "bcd"
        assert self.app.engine.num_unfinished == 0
        assert self.app.core.scheduler.kv.pool.num_used == 0


@asynccontextmanager
async def site(
    seconds: float = 0.0, max_connections: int = 1000, **options: object
) -> AsyncIterator[Site]:
    async with (
        running(seconds, **options) as app,
        listening(app.app, max_connections=max_connections) as (server, address),
    ):
        yield Site(app, address[1], server)


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what it waits for is the server's own state
            await asyncio.sleep(0.01)
