"""What the engine core asks of whoever computes its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any, Protocol

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.errors import InvalidRequestError
from quire.core.lora import LoRARequest
from quire.core.sampling_params import SamplingParams


class ForwardError(Exception):
    """A step's forward pass raised; the exception is its `__cause__`.

    The step's copies are done and its `removed` are gone, but nothing else of it is left: the
    same step, or a part of it without those two, may be asked for again.

    Attributes:
        failed_loads, copy_seconds: what came of the copies; see `ModelOutput`.
    """

    def __init__(self, failed_loads: list[int], copy_seconds: float) -> None:
        super().__init__("the step's forward pass raised")
        self.failed_loads = failed_loads
        self.copy_seconds = copy_seconds


class StepSkippedError(Exception):
    """The step was not begun, for the one ahead of it failed; nothing of it was done."""


class Pending(Protocol):
    """A step on its way."""

    def result(self) -> ModelOutput:
        """Wait for it; raises what it raised."""


class Executor(ABC):
    """Holds the model and the KV cache; computes one step at a time."""

    @abstractmethod
    def start(self) -> None:
        """Load the model and allocate the KV cache; the properties hold from then on."""

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""

    @property
    @abstractmethod
    def phases(self) -> dict[str, float]:
        """Seconds spent in each part of `start`, in order."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, object]:
        """What it runs on: device, dtype, isa, weight_bytes, kv_cache_bytes …"""

    @abstractmethod
    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        """Compute one step.

        An exception leaves the executor able to go on: the scheduler fails the step's
        requests and names them in the next step's `removed`. After a `ForwardError` the core
        asks for the step's halves, and so on, to find the request that it fails for.
        """

    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> Pending:
        """Begin a step; steps are computed in the order in which they come.

        Where steps are computed on the caller's thread, this one is now.

        Args:
            ahead: the step in flight before it. Should that fail, this one is skipped: its
                result is a `StepSkippedError`, and not even its `removed` are gone.
        """
        step: Future[ModelOutput] = Future()
        try:
            step.set_result(self.execute_behind(ahead, batch))
        except Exception as error:
            step.set_exception(error)
        return step

    def execute_behind(self, ahead: Pending | None, batch: SchedulerOutput) -> ModelOutput:
        """Compute a step unless the one `ahead`, which has ended, failed."""
        if ahead is not None:
            try:
                ahead.result()
            except Exception:
                raise StepSkippedError from None
        return self.execute(batch)

    def prepare(
        self,
        params: SamplingParams,
        eos_token_ids: tuple[int, ...],
        lora_request: LoRARequest | None = None,
    ) -> Future[Any] | None:
        """Begin what a request needs before it may be in a step: to have its grammar compiled, and
        its adapter loaded.

        Returns:
            What it has to wait for, or None. It raises `InvalidRequestError` where the request
            cannot be served; of its result only that it is there counts.
        """
        return None

    def call(self, method: str, args: list[Any]) -> Any:
        """Run one of the executor's own methods by name, between two steps; plain data.

        Raises:
            InvalidRequestError: it has none of that name.
        """
        raise InvalidRequestError(f"the engine core has no method {method!r}.")

    @abstractmethod
    def shutdown(self) -> None:
        """Free everything; the executor is not used again."""
