"""The interface of executors, which compute the engine core's steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import StateConfig
from quire.core.errors import InvalidRequestError
from quire.core.lora import LoRARequest
from quire.core.messages import StageStats
from quire.core.sampling_params import SamplingParams
from quire.kv.lower_tiers import LowerTier


class ForwardError(Exception):
    """A step's forward pass raised; the exception is its `__cause__`.

    The step's copies are done and its `removed` are removed. Nothing else of it remains: the core
    may run the same step, or a part of it, again without these two.

    Attributes:
        failed_loads, copy_seconds, pending_loads: the result of the copies; see `ModelOutput`.
    """

    def __init__(
        self, failed_loads: list[int], copy_seconds: float, pending_loads: Sequence[int] = ()
    ) -> None:
        super().__init__("the step's forward pass raised")
        self.failed_loads = failed_loads
        self.copy_seconds = copy_seconds
        self.pending_loads = list(pending_loads)

    @property
    def copied(self) -> dict[str, Any]:
        """Return the result of the copies, as fields of `ModelOutput`."""
        return {
            "failed_loads": self.failed_loads,
            "pending_loads": self.pending_loads,
            "copy_seconds": self.copy_seconds,
        }


class RemoteError(Exception):
    """An exception in another process; its text names the type."""


def error_text(error: BaseException) -> str:
    """Return the text that reports an executor's exception."""
    cause = error.__cause__ if isinstance(error, ForwardError) and error.__cause__ else error
    return str(cause) if isinstance(cause, RemoteError) else f"{type(cause).__name__}: {cause}"


class StepSkippedError(Exception):
    """The step was not started, because the one ahead of it failed."""


class Prepare(msgspec.Struct, tag=True, array_like=True):
    """The parts of a request that take a while to prepare; see `Executor.prepare`."""

    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    lora_request: LoRARequest | None = None


class Pending(Protocol):
    """A step in flight."""

    def result(self) -> ModelOutput:
        """Wait for the step; return its output, or raise its error."""


class Executor(ABC):
    """Holds the model and the KV cache; computes one step at a time.

    Attributes: `start` sets them.
        num_blocks: blocks in the KV cache.
        states: slots for states; None without recurrent layers.
        lower_tiers: tiers below host memory, in the order of their search.
        stages: what the pipeline stages have done; empty for one.
        phases: seconds of each part of `start`, in order.
        facts: about the engine: device, dtype, isa, weight_bytes, kv_cache_bytes …
    """

    num_blocks: int
    states: StateConfig | None = None
    lower_tiers: Sequence[LowerTier] = ()
    stages: Sequence[StageStats] = ()
    phases: dict[str, float]
    facts: dict[str, object]

    def begin(self) -> None:  # noqa: B027
        """Begin what needs no Python, ahead of `start`, for a caller that waits for a first token;
        optional."""

    @abstractmethod
    def start(self) -> None:
        """Load the model and allocate the KV cache."""

    @abstractmethod
    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        """Compute one step.

        After an exception the executor can continue. The scheduler fails the step's requests and
        names them in the next step's `removed`. After a `ForwardError` the core runs the step's
        halves, and so on, to find the request that causes it.
        """

    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> Pending:
        """Start a step; steps are computed in order.

        Without a separate thread the step is computed now.

        Args:
            ahead: the step in flight before it. If that fails, this one is skipped: it raises
                `StepSkippedError`, and not even its `removed` are removed.
        """
        step: Future[ModelOutput] = Future()
        try:
            step.set_result(self.execute_behind(ahead, batch))
        except Exception as error:
            step.set_exception(error)
        return step

    def most_in_flight(self, wanted: int) -> int:
        """Return how many steps may be in flight at present, of those that the configuration wants.

        One, if nothing is computed beside the caller: all that `submit` began has ended, so the
        core gains nothing from beginning another step before it lands one.
        """
        return wanted

    def execute_behind(self, ahead: Pending | None, batch: SchedulerOutput) -> ModelOutput:
        """Compute a step, unless the step `ahead`, which has ended, failed."""
        if ahead is not None:
            try:
                ahead.result()
            except Exception:
                raise StepSkippedError from None
        return self.execute(batch)

    def prepare(self, wanted: Prepare) -> Future[Any] | None:
        """Start compiling a request's grammar and loading its adapter, before its first step.

        Returns:
            A future to wait for, or None. It raises `InvalidRequestError` if the request cannot be
            served; its value has no meaning.
        """
        return None

    def call(self, method: str, args: list[Any]) -> Any:
        """Run a method by name, between two steps; arguments and result are plain data.

        Raises:
            InvalidRequestError: there is no such method.
        """
        raise InvalidRequestError(f"the engine core has no method {method!r}.")

    def retire(self) -> None:  # noqa: B027
        """Say to other machines, before `shutdown`, that no other engine core follows."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free everything. The executor cannot be used again."""
