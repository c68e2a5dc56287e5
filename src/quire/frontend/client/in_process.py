"""An engine core in this process, with the interface of `CoreClient`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, QuireError
from quire.core.messages import AbortRequests, AddRequest, Call, CoreInput, Ready
from quire.engine.process import begin_to_load, load_core
from quire.engine.suspects import Suspects
from quire.frontend.client.interface import DeathHandler, MessageHandler
from quire.system.heap import return_memory

if TYPE_CHECKING:
    from quire.engine.core import EngineCore
    from quire.executor.base import Executor


class InProcessClient:
    """Computes a step when `step` is called; answers everything else inside `send`.

    May be started again after `end`.
    """

    separate = False
    prepared = True
    suspects: Suspects
    """Not set: this core cannot be lost alone."""
    patience = 0.0

    def __init__(self) -> None:
        self._core: EngineCore | None = None
        self._executor: Executor | None = None

    @property
    def core(self) -> EngineCore:
        """Return the core. Raises EngineDeadError if there is none."""
        if self._core is None:
            raise EngineDeadError("The engine core is not loaded.")
        return self._core

    def configure(self, config: EngineConfig) -> None:
        """Begin to read the weights; `start` loads the model."""
        self._executor = begin_to_load(config)

    def prepare(self, cpus: Sequence[int] = ()) -> None:
        """Do nothing."""

    async def start(
        self, config: EngineConfig, on_message: MessageHandler, on_death: DeathHandler
    ) -> Ready:
        """Load the model in this thread."""
        executor, self._executor = self._executor, None
        self._core, ready = load_core(config, executor=executor)
        self._on_message = on_message
        return ready

    def send(self, message: CoreInput) -> None:
        assert isinstance(message, AddRequest | AbortRequests | Call)
        if (answer := self.core.handle(message)) is not None:
            self._on_message(answer)

    def step(self) -> bool:
        """Compute one step and forward its outputs; return False if there is no work."""
        outputs = self.core.step()
        if outputs is None:
            return False
        self._on_message(outputs)
        self.core.watch.lap("send")
        return True

    def rest(self) -> None:
        """Count the time since the last step as idle."""
        self.core.watch.lap("idle")

    def end_stuck(self, error: QuireError) -> None:
        raise error

    async def discard(self) -> None:
        self.shutdown()

    async def end(self) -> None:
        self._free()
        return_memory()

    def shutdown(self) -> None:
        """Free the model and the KV cache. Harmless when repeated."""
        self._free(is_final=True)

    def _free(self, *, is_final: bool = False) -> None:
        if self._core is not None:
            self._core.shutdown(is_final=is_final)
            self._core = None
        if self._executor is not None:  # it was never started
            self._executor.shutdown()
            self._executor = None
