"""What a front end asks of its connection to an engine core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quire.core.config import EngineConfig
from quire.core.errors import QuireError
from quire.core.messages import CallResult, CoreInput, Ready, StepOutputs
from quire.engine.suspects import Suspects

MessageHandler = Callable[[StepOutputs | CallResult], None]
DeathHandler = Callable[[QuireError], None]


class CoreClient(Protocol):
    """Starts a core, sends it messages and forwards its answers.

    Attributes:
        separate: the core has its own process. It can be lost alone, so the front end watches it
            and has another stand by.
        suspects: the structures that the core worked on when it was lost; set by the start.
        patience: seconds that `shutdown` waits for the core to end by itself.
    """

    separate: bool
    suspects: Suspects
    patience: float

    def configure(self, config: EngineConfig) -> None:
        """Begin to load the model ahead of `start`, if the core can."""

    def prepare(self, cpus: Sequence[int] = ()) -> None:
        """Begin what can be done ahead of `start`, at low priority and on these CPUs."""

    @property
    def prepared(self) -> bool:
        """Return whether `prepare` has finished."""

    async def start(
        self, config: EngineConfig, on_message: MessageHandler, on_death: DeathHandler
    ) -> Ready: ...

    def send(self, message: CoreInput) -> None: ...

    def end_stuck(self, error: QuireError) -> None:
        """Make a core that does not answer log its stacks, then report it dead with `error`."""

    async def discard(self) -> None:
        """End a lost core in whatever state; its memory is free afterwards."""

    async def end(self) -> None:
        """Do what `shutdown` does without blocking the event loop."""

    def shutdown(self) -> None: ...
