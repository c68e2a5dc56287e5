"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.server.fake_engine import Running, running


@pytest.fixture
async def app() -> AsyncIterator[Running]:
    """The application with its default options over a fresh engine, in the test's event loop."""
    async with running() as found:
        yield found
