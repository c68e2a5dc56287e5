"""Which executor a configuration has."""

from __future__ import annotations

from collections.abc import Callable

from quire.core.config import EngineConfig
from quire.executor.base import Executor
from quire.executor.uniproc import UniprocExecutor
from quire.models.weights.shares import worker_grid


def make_executor(config: EngineConfig, on_lost: Callable[[int], None] | None = None) -> Executor:
    """Return the executor for `config`.

    Args:
        on_lost: called with the exit status of an executor's process that ended unexpectedly.
    """
    if worker_grid(config).size == 1:
        if config.device == "cpu":
            return UniprocExecutor(config)
        from quire.executor.queued import QueueingExecutor

        return QueueingExecutor(config)
    from quire.executor.multiproc import MultiprocExecutor  # a start without it is faster

    return MultiprocExecutor(config, on_lost)
