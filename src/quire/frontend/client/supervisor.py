"""One engine core of a fleet: keeps it running, and replaces it if it is lost or stuck.

    starting ──► ready ───lost───► restarting ──lost MAX_RESTARTS times──► dead
                   ▲                    │
                   └───────loaded───────┘

While a core is ready, a standby process has everything imported, so that a restart only loads the
model.

Requests do not pass through this file: the sender uses `client`, and messages go from the client
straight to their handler.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Protocol

from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, EngineRestartingError, QuireError
from quire.core.messages import Call, CallResult, CoreInput, Ready, StepOutputs
from quire.frontend.client.asleep import sleeping_error
from quire.frontend.client.calls import CoreCalls
from quire.frontend.client.core_client import HURRIED_SECONDS
from quire.frontend.client.interface import CoreClient
from quire.frontend.client.standby import STAND_BY_SECONDS, Standby
from quire.frontend.client.watchdog import TICKS, Watchdog
from quire.system.heap import return_memory

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Restarts in a row; a core that was ready for `HEALTHY_SECONDS` resets the count."""
BACKOFF_SECONDS = (0.0, 1.0, 5.0)
"""Wait before each restart."""
HEALTHY_SECONDS = 30.0


class CoreState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    SLEEPING = "sleeping"
    DEAD = "dead"


class ReplicaUser(Protocol):
    """The sender of requests; `replica` is a replica's number."""

    def on_lost(self, replica: int, error: QuireError) -> None:
        """Move or fail all requests of a lost core; another one will start."""

    def on_restored(self, replica: int, ready: Ready) -> None:
        """Another core is ready and has no requests yet."""

    def on_dead(self, replica: int, error: QuireError) -> None:
        """Fail all requests of a lost core that will not be replaced."""

    def has_work(self, replica: int) -> bool:
        """Return whether a replica has requests."""


class Replica:
    """One engine core at a time.

    Args:
        standby: makes clients for new cores.
        first: the first core's client, if it exists already.

    Attributes:
        client: the connection to the core, or to the lost one.
        calls: those to the running core.
        error: what a request must raise now; None while the core is ready.
        num_restarts: how often a core was replaced.
    """

    def __init__(
        self,
        number: int,
        standby: Standby,
        config: EngineConfig,
        user: ReplicaUser,
        on_message: Callable[[int, StepOutputs | CallResult], None],
        first: CoreClient | None = None,
    ) -> None:
        self.number = number
        self.client = first or standby.connect()
        self.calls = CoreCalls(self._send_call)
        self.state = CoreState.STARTING
        self.error: QuireError | None = None
        self.num_restarts = 0
        self._standby = standby
        self._config = config
        self._on_message = partial(on_message, number)
        self._user = user
        self._attempts = 0
        self._ready_since = 0.0
        self._restarting: asyncio.Task[None] | None = None
        self._watchdog: Watchdog | None = None

    @property
    def is_ready(self) -> bool:
        return self.state is CoreState.READY

    async def start(self) -> Ready:
        """Start the first core and wait until its model is loaded; raises as `CoreClient.start`."""
        ready = await self._start_client()
        self._on_ready()
        return ready

    def send(self, message: CoreInput) -> None:
        """Send without waiting; raises as `CoreClient.send`."""
        self.client.send(message)

    def read(self, message: StepOutputs | CallResult) -> StepOutputs | None:
        """Return a step's outputs; None for the result of a call, which its caller gets."""
        if self._watchdog is not None:
            self._watchdog.silent = 0
        if isinstance(message, StepOutputs):
            return message
        self.calls.answer(message)
        return None

    def watch(self, seconds: float) -> None:
        """Replace the core from now on if it is silent for `seconds` while it has work."""
        self._watchdog = Watchdog(
            seconds,
            busy=lambda: self.is_ready and bool(self.calls or self._user.has_work(self.number)),
            stuck=lambda: self._end_stuck(seconds),
            hung=lambda: self.client.suspects.hung(TICKS),
        )

    def wake_watchdog(self) -> None:
        """Start the watchdog's timer, which runs while there is work."""
        if self._watchdog is not None:
            self._watchdog.start()

    async def sleep(self) -> None:
        """End the core until `wake_up`. The standby process stays."""
        if self.error is not None:
            raise self.error
        self.state, self.error = CoreState.SLEEPING, sleeping_error("wake_up()")
        self._standby.cancel()
        await self.client.end()

    async def wake_up(self) -> Ready:
        """Start a core after `sleep`; raises as `CoreClient.start`."""
        asleep = self.error
        self.error = EngineRestartingError("The model is being loaded again.")
        try:
            self.client = await self._standby.take()
            ready = await self._start_client()
        except BaseException:
            await self.client.discard()
            self.error = asleep
            raise
        self._on_ready()
        return ready

    def hurry(self) -> None:
        """Shorten the wait of `shutdown`."""
        self.client.patience = HURRIED_SECONDS

    def shutdown(self) -> None:
        """Stop the core for good. Harmless when repeated."""
        if self._restarting is not None:
            self._restarting.cancel()
        self._die(EngineDeadError("The engine has been shut down."))
        self.client.shutdown()
        if self._watchdog is not None:
            self._watchdog.stop()

    def _send_call(self, call: Call) -> None:
        if self.error is not None:
            raise self.error
        self.send(call)
        self.wake_watchdog()

    def _end_stuck(self, seconds: float) -> None:
        """Log the stacks of a core that was silent or hung for `seconds`, and replace it."""
        if self.is_ready:
            why = f"no step has ended for {seconds:.0f} s, or native code is at one grammar so long"
            logger.error("%s; the engine core's stacks are:", why)
            self.client.end_stuck(EngineDeadError(f"The engine core was stuck: {why}."))

    async def _start_client(self) -> Ready:
        return await self.client.start(self._config, self._on_message, self._on_death)

    def _on_ready(self) -> None:
        self.state, self.error = CoreState.READY, None
        self._ready_since = time.monotonic()
        if self.client.separate:
            delay = 0.0 if self.num_restarts else STAND_BY_SECONDS
            self._standby.prepare(delay, self._config.cpus)

    def _on_death(self, error: QuireError) -> None:
        """Report that the ready core is lost, and start another."""
        if not self.is_ready:
            return
        if time.monotonic() - self._ready_since >= HEALTHY_SECONDS:
            self._attempts = 0
        logger.error("the engine core is lost: %s", error)
        self._standby.cancel()  # it would slow the next core's start
        self.state = CoreState.RESTARTING
        self.error = EngineRestartingError("The engine core was lost; another one is starting.")
        self.calls.fail(self.error)
        self._user.on_lost(self.number, self.error)
        self._restarting = asyncio.get_running_loop().create_task(self._restart(error))

    async def _restart(self, error: Exception) -> None:
        """Start cores until one is ready, at most `MAX_RESTARTS` in a row."""
        while self._attempts < MAX_RESTARTS:
            await self.client.discard()
            await asyncio.sleep(BACKOFF_SECONDS[self._attempts])
            self._attempts += 1
            logger.warning(
                "starting the engine core again (%d of %d)", self._attempts, MAX_RESTARTS
            )
            try:
                self.client = await self._standby.take()
                ready = await self._start_client()
            except (QuireError, OSError, RuntimeError) as failure:  # no thread, for example
                error = failure
                logger.error("the engine core did not start: %s", failure)
                continue
            self.num_restarts += 1
            self._on_ready()
            logger.warning("the engine core is ready again")
            self._user.on_restored(self.number, ready)
            return_memory()  # the lost core's requests all ended at once
            return
        logger.error("the engine core was lost %d times in a row; giving up", MAX_RESTARTS + 1)
        await self.client.discard()
        dead = EngineDeadError(f"The engine core was lost and does not start again: {error}")
        dead.__cause__ = error  # of any class: a request's error it is not
        self._die(dead)

    def _die(self, error: QuireError) -> None:
        if self.state is not CoreState.DEAD:
            self.state, self.error = CoreState.DEAD, error
            self.calls.fail(error)
            self._user.on_dead(self.number, error)
