"""The executor of one process: the worker runs in the engine core's process."""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.executor.base import Executor, Pending, Prepare
from quire.executor.peers import Peers
from quire.executor.worker import Worker

SWITCH_SECONDS = 5e-5
"""How long a thread that returns from a kernel waits for Python's lock. Python's default of 5 ms is
as long as a step."""


class UniprocExecutor(Executor):
    """Calls its worker directly or, if steps overlap, from a separate thread."""

    worker_type: type[Worker] = Worker

    def __init__(self, config: EngineConfig, peers: Peers | None = None) -> None:
        self._worker = self.worker_type(config, peers)
        self._overlaps = config.steps_in_flight > 1
        self._switch_seconds = 0.0
        """The interpreter's own interval, which `shutdown` restores."""
        self._thread = ThreadPoolExecutor(1, "quire-steps")  # its thread starts with the first step

    def begin(self) -> None:
        self._worker.begin()

    def start(self) -> None:
        worker = self._worker
        worker.start()
        self.num_blocks, self.states = worker.num_blocks, worker.states
        self.lower_tiers, self.phases, self.facts = worker.lower_tiers, worker.phases, worker.facts
        if self._overlaps:
            self._switch_seconds = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_SECONDS)

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        return self._worker.execute(batch)

    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> Pending:
        return self._thread.submit(self.execute_behind, ahead, batch)

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
