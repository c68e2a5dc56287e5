"""The executor of one process: the worker is an object in the engine core's own."""

from __future__ import annotations

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.executor.base import Executor
from quire.executor.worker import Worker


class UniprocExecutor(Executor):
    """Calls its worker directly."""

    def __init__(self, config: EngineConfig) -> None:
        self._worker = Worker(config)

    def start(self) -> None:
        self._worker.start()

    @property
    def num_blocks(self) -> int:
        return self._worker.num_blocks

    @property
    def phases(self) -> dict[str, float]:
        return self._worker.phases

    @property
    def facts(self) -> dict[str, object]:
        return self._worker.facts

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        return self._worker.execute(batch)

    def shutdown(self) -> None:
        self._worker.shutdown()
