"""What executors on a virtual clock share: the cost of a step, and its end."""

from __future__ import annotations

from abc import abstractmethod

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import StateConfig
from quire.core.cost import StepCost
from quire.executor.base import Executor, Pending
from quire.simulate.clock import VirtualClock
from quire.system.records import dataclass


def step_seconds(cost: StepCost, batch: SchedulerOutput) -> float:
    """Return the cost model's prediction for the first pass of this batch."""
    computed, scheduled = batch.num_computed_tokens, batch.num_scheduled_tokens
    total = int(scheduled.sum())
    pairs = int(scheduled @ computed) + (int(scheduled @ scheduled) + total) // 2
    return cost.seconds(total, len(batch.request_ids), int(computed.sum()) + total, pairs)


@dataclass(slots=True)
class ModelledStep:
    """A step that ends at `end`, with an output or an error."""

    clock: VirtualClock
    end: float
    output: ModelOutput | None = None
    error: Exception | None = None

    def result(self) -> ModelOutput:
        """Advance the clock to the end of the step and return its output, or raise its error."""
        self.clock.advance(max(0.0, self.end - self.clock()))
        if self.output is None:
            assert self.error is not None
            raise self.error
        return self.output


class ClockedExecutor(Executor):
    """An executor without a model or a device: `submit` decides what a step does."""

    def __init__(
        self, num_blocks: int, clock: VirtualClock, states: StateConfig | None = None
    ) -> None:
        self.num_blocks, self.states = num_blocks, states
        self.phases, self.facts = dict[str, float](), {"device": "modelled"}
        self._clock = clock

    def start(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        return self.submit(batch).result()

    @abstractmethod
    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> Pending:
        """Begin a step; it ends when its result is requested, or later."""
