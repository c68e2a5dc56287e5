"""The process that stands by: it has everything imported, for the next core that starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from quire.core.errors import EngineDeadError
from quire.frontend.client.core_client import HURRIED_SECONDS
from quire.frontend.client.interface import CoreClient
from quire.system.hardware import detect

logger = logging.getLogger(__name__)

STAND_BY_SECONDS = 10.0
"""Delay after the first core is ready: a short run needs no standby process. After a restart it
starts at once, because the next core may be lost soon, too."""
STAND_BY_BYTES = 2**30
"""Least free memory for a standby process, which takes 46 MiB."""


class Standby:
    """At most one process for all cores of an engine.

    Args:
        connect: returns a client for a new core.
    """

    def __init__(self, connect: Callable[[], CoreClient]) -> None:
        self.connect = connect
        self.client: CoreClient | None = None
        self._preparing: asyncio.TimerHandle | None = None

    def prepare(self, delay: float, cpus: Sequence[int] = ()) -> None:
        """Start the process after `delay` seconds, unless there is one then; it imports on `cpus`.

        Those are of one replica, so that no other one waits for it.
        """
        self.cancel()
        self._preparing = asyncio.get_running_loop().call_later(delay, self._prepare, cpus)

    def cancel(self) -> None:
        """Start no process until `prepare` is called again."""
        if self._preparing is not None:
            self._preparing.cancel()

    async def take(self) -> CoreClient:
        """Return the process's client if it is prepared, else a new one at normal priority."""
        client, self.client = self.client, None
        if client is not None and not client.prepared:
            await client.discard()
            client = None
        return client or self.connect()

    def hurry(self) -> None:
        """Shorten the wait of `shutdown`."""
        if self.client is not None:
            self.client.patience = HURRIED_SECONDS

    def shutdown(self) -> None:
        """End the process. Harmless when repeated."""
        self.cancel()
        if self.client is not None:
            self.client.shutdown()

    def _prepare(self, cpus: Sequence[int]) -> None:
        if self.client is not None:
            return
        if detect().available_bytes < STAND_BY_BYTES:
            logger.info("no standby engine core: less than 1 GiB of memory is free")
            return
        client = self.connect()
        try:
            client.prepare(cpus)
        except EngineDeadError as error:
            logger.warning("no standby engine core: %s", error)
        else:
            self.client = client


class FarCores(Protocol):
    """Where cores on other machines are found.

    Attributes:
        ranks: their replicas' numbers.
    """

    ranks: range

    def standby(self, rank: int) -> Standby:
        """Return what makes clients for a replica."""

    def close(self) -> None:
        """Find no more. Harmless when repeated."""


class NoStandby(Standby):
    """The same without such a process."""

    def prepare(self, delay: float, cpus: Sequence[int] = ()) -> None:
        pass
