"""The executor of one process: the worker runs in the engine core's process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig, StateConfig
from quire.executor.base import Executor, Pending, Prepare, StepSkippedError
from quire.executor.peers import Peers
from quire.executor.worker import Worker
from quire.kv.lower_tiers import LowerTier

SWITCH_SECONDS = 5e-5
"""How long a thread that returns from a kernel waits for Python's lock. Python's default of 5 ms is
as long as a step."""


class _Queued:
    """A step on a device's queue, or what went wrong on the way there."""

    def __init__(self, worker: Worker, batch: SchedulerOutput, ahead: Pending | None) -> None:
        self._worker = worker
        self._output: ModelOutput | None = None
        self._error: Exception | None = None
        try:
            if isinstance(ahead, _Queued) and ahead._error is not None:
                raise StepSkippedError
            self._output = worker.queue(batch)
        except Exception as error:
            self._error = error

    def result(self) -> ModelOutput:
        if self._output is None:
            assert self._error is not None
            raise self._error
        return self._worker.read(self._output)


class UniprocExecutor(Executor):
    """Calls its worker directly. If steps overlap, an accelerator queues them; a CPU computes them
    in a separate thread."""

    def __init__(self, config: EngineConfig, peers: Peers | None = None) -> None:
        self._worker = Worker(config, peers)
        self._queues = config.device != "cpu"
        self._overlaps = config.steps_in_flight > 1 and not self._queues
        self._switch_seconds = 0.0
        """The interpreter's own interval, which `shutdown` restores."""
        self._thread = ThreadPoolExecutor(1, "quire-steps")  # its thread starts with the first step

    def begin(self) -> None:
        self._worker.begin()

    def start(self) -> None:
        self._worker.start()
        if self._overlaps:
            self._switch_seconds = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_SECONDS)

    @property
    def num_blocks(self) -> int:
        return self._worker.num_blocks

    @property
    def states(self) -> StateConfig | None:
        return self._worker.states

    @property
    def lower_tiers(self) -> Sequence[LowerTier]:
        return self._worker.lower_tiers

    @property
    def phases(self) -> dict[str, float]:
        return self._worker.phases

    @property
    def facts(self) -> dict[str, object]:
        return self._worker.facts

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        return self._worker.execute(batch)

    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> Pending:
        if self._queues:
            return _Queued(self._worker, batch, ahead)
        return self._thread.submit(self.execute_behind, ahead, batch)

    @property
    def idle(self) -> bool:
        return self._queues and not self._worker.num_unread

    def prepare(self, wanted: Prepare) -> Future[Any] | None:
        return self._worker.prepare(wanted)

    def call(self, method: str, args: list[Any]) -> Any:
        if self._overlaps:  # on the thread of the steps, between two of them
            return self._thread.submit(self._call, method, args).result()
        return self._call(method, args)

    def _call(self, method: str, args: list[Any]) -> Any:
        return self._worker.call(method, args)

    def shutdown(self) -> None:
        self._thread.shutdown()
        self._worker.shutdown()
        if self._switch_seconds > SWITCH_SECONDS:  # else another executor will restore it
            sys.setswitchinterval(self._switch_seconds)
