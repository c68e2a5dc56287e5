"""Fixtures of the tests of a server, and of an application at an address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from quire.server.http import protocol
from tests.e2e.serving import Server
from tests.faults.requests import assert_unharmed
from tests.faults.sites import Passing, Site, site


@pytest.fixture
def unharmed(server: Server) -> Iterator[str]:
    """What the server answers: in the end the same, and it is idle."""
    canary = server.canary
    yield canary
    assert_unharmed(server, canary)


@pytest.fixture
async def where() -> AsyncIterator[Site]:
    """The application with its default options at an address, in the test's event loop."""
    async with site() as found:
        yield found


@pytest.fixture
async def pass_time(monkeypatch: pytest.MonkeyPatch) -> Passing:
    """Let so many seconds pass in no time, by the event loop's clock."""
    loop = asyncio.get_running_loop()
    clock, passed = loop.time, 0.0

    async def more(seconds: float) -> None:
        nonlocal passed
        for _ in range(2 * protocol.TICKS):
            passed += seconds / (2 * protocol.TICKS)
            for _ in range(3):
                await asyncio.sleep(0)

    monkeypatch.setattr(loop, "time", lambda: clock() + passed)
    return more
