"""`quire serve --headless`: lend this machine's workers or replicas to another one."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs


def lend(args: EngineArgs, node: int, *, headless: bool) -> int:
    """Lend this machine's workers to node 0, until that is stopped, or until a signal.

    Raises:
        QuireError: a flag is wrong, or node 0 refuses this machine, or is not there.
    """
    with _at_signals(lambda: os._exit(0)):  # its processes end with it
        return _lend(args, node, headless=headless)


@contextmanager
def _at_signals(act: Callable[[], object]) -> Iterator[None]:
    """Have SIGTERM and Ctrl-C call `act`; later they do what they did before."""
    numbers = signal.SIGTERM, signal.SIGINT
    before = {number: signal.signal(number, lambda *_: act()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lend(args: EngineArgs, node: int, *, headless: bool) -> int:
    """Do what `lend` does, but for signals."""
    from quire.core.log import setup_logging
    from quire.executor.node import lend_workers
    from quire.resolve.engine import resolve
    from quire.system.hardware import detect

    if headless and args.nnodes == 1 and args.data_parallel_size > 1:
        return _lend_replicas(args)
    if not (headless and 0 < node < args.nnodes):
        raise ConfigError(
            f"node_rank is {node} and nnodes {args.nnodes}, "
            f"{'with' if headless else 'without'} --headless.",
            fix="Machines 1 to nnodes - 1 need --headless; node 0 answers requests, without it. "
            "For replicas set --data-parallel-size.",
            param="node_rank",
        )
    setup_logging()
    lend_workers(resolve(args, detect()).config, node)
    return 0


def _lend_replicas(args: EngineArgs) -> int:
    """Do the same with this machine's replicas and the machine of replica 0; raises as `lend`."""
    from quire.core.log import setup_logging
    from quire.frontend.far.machine import lend_cores

    if (rank := args.data_parallel_rank) is not None:
        raise ConfigError(
            f"data_parallel_rank is {rank}; a server for one replica is not --headless.",
            fix=f"Set --data-parallel-start-rank {rank} --data-parallel-size-local 1 instead.",
            param="data_parallel_rank",
        )
    local = args.data_parallel_size_local
    if local is None:
        local = args.data_parallel_size - args.data_parallel_start_rank
    setup_logging()
    changed = dataclasses.replace(
        args, data_parallel_hybrid_lb=True, data_parallel_size_local=local
    )
    with _at_signals(lambda: sys.exit(0)):
        lend_cores(changed)
    return 0
