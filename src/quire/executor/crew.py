"""The processes of workers on this machine: start, watch and end them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from itertools import pairwise

from quire.executor.peers import Ends
from quire.parallel.grid import Grid
from quire.system.hardware import core_cpus
from quire.system.parent import interrupts_blocked

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5.0


class Crew:
    """Processes that end with this one, in any state.

    Args:
        on_ended: called, in a separate thread, with the exit status of a process that ended
            unexpectedly.
    """

    def __init__(self, grid: Grid, on_ended: Callable[[int], None]) -> None:
        self._grid = grid
        self._on_ended = on_ended
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._closing = False

    def spawn(self, worker: int, line: int, ends: Ends, cpus: list[int]) -> None:
        """Start a worker's process on `cpus` (empty: on any).

        It inherits its end of the `line` to the executor, and its `ends`; those that only it uses
        are closed here, because a reader must see the writer's end.
        """
        started = threading.Event()
        args = (worker, line, ends, cpus, started)
        name = f"worker-{worker}"
        thread = threading.Thread(target=self._run, args=args, name=name, daemon=True)
        thread.start()
        started.wait()
        self._threads.append(thread)

    def close(self, patience: float = SHUTDOWN_SECONDS) -> None:
        """Wait for the processes, whose lines are closed; kill them after `patience` seconds."""
        self._closing = True
        for process in self._processes:
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                if patience:
                    logger.warning("a worker did not stop in %.0f s; killed", patience)
                process.kill()
        for thread in self._threads:
            thread.join()

    def _run(
        self, worker: int, line: int, ends: Ends, cpus: list[int], started: threading.Event
    ) -> None:
        """Start a worker's process and wait for its end. The system ends a process with the thread
        that started it, so this thread waits; it also passes on its CPUs."""
        if cpus:
            os.sched_setaffinity(0, cpus)
        words = map(str, (os.getpid(), line, *ends))
        try:
            with interrupts_blocked():
                process = subprocess.Popen(
                    [sys.executable, "-m", "quire.executor.rank", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # its output must not mix with the command's
                    pass_fds=(line, *ends.all),
                )
            self._processes.append(process)
        finally:
            for end in (line, *ends.all[1:]):
                os.close(end)
            started.set()
        status = process.wait()
        if not self._closing:
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            logger.error("The process of %s ended with %s.", self._grid.name(worker), how)
            self._on_ended(status)


def node_ends(
    grid: Grid,
    memory: int,
    node: int = 0,
    before: Mapping[int, int] | None = None,
    behind: Mapping[int, int] | None = None,
) -> list[Ends]:
    """Return what each worker of a machine inherits: the memory, and ends to the neighbour stages.

    Args:
        before, behind: descriptors of sockets from and to other machines, by this machine's worker.
    """
    workers = grid.workers_of(node)
    ends = {worker: Ends(memory) for worker in workers}
    for worker, far in (before or {}).items():
        ends[worker] = ends[worker]._replace(before=far)
    for worker, far in (behind or {}).items():
        ends[worker] = ends[worker]._replace(behind=far)
    for group in grid.pipeline_groups:
        for sender, receiver in pairwise(worker for worker in group if worker in workers):
            read, write = os.pipe()
            ends[sender] = ends[sender]._replace(behind=write)
            ends[receiver] = ends[receiver]._replace(before=read)
    return list(ends.values())


def rank_cpus(ranks: int, threads: int) -> list[list[int]]:
    """Return each rank's CPUs: neighbouring cores, equally many; empty if there is no core for each
    of the `threads`."""
    cores = core_cpus()
    if ranks * threads > len(cores):
        return [[] for _ in range(ranks)]
    first = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    return [
        [cpu for core in cores[first[rank] : first[rank + 1]] for cpu in core]
        for rank in range(ranks)
    ]
