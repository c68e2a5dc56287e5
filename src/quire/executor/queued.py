"""The executor of one accelerator: steps are queued on it before the last one's tokens are read."""

from __future__ import annotations

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.executor.base import Pending, StepSkippedError
from quire.executor.uniproc import UniprocExecutor
from quire.executor.worker import Worker


class QueueingWorker(Worker):
    """A worker whose steps need not be read at once."""

    def queue(self, batch: SchedulerOutput) -> ModelOutput:
        """Run `execute`, but leave what can wait to `read`; see `Unread.allowed`."""
        if self._runner is None or (self._profiling is not None and self._profiling.active):
            return self.execute(batch)
        with self._runner.unread.allowed(batch):
            return self._execute(batch)

    def read(self, output: ModelOutput) -> ModelOutput:
        """Complete an output of `queue`; see `Unread.read`."""
        assert self._runner is not None, "the worker is not started"
        self._runner.unread.read(output)
        return output

    @property
    def num_unread(self) -> int:
        """Return how many outputs of `queue` are incomplete."""
        return len(self._runner.unread) if self._runner else 0


class QueueingExecutor(UniprocExecutor):
    """Queues steps on a device from the caller's thread."""

    worker_type = QueueingWorker
    _worker: QueueingWorker

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._overlaps = False

    def submit(self, batch: SchedulerOutput, ahead: Pending | None = None) -> Pending:
        return _Queued(self._worker, batch, ahead)

    def most_in_flight(self, wanted: int) -> int:
        return wanted if self._worker.num_unread else 1


class _Queued:
    """A step on a device's queue, or what went wrong on the way there."""

    def __init__(
        self, worker: QueueingWorker, batch: SchedulerOutput, ahead: Pending | None
    ) -> None:
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
