"""The processes of the other workers: start them, exchange messages, watch and end them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar, cast

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, QuireError, class_of_code
from quire.executor import frames
from quire.executor.cluster import Cluster
from quire.executor.crew import Crew, node_ends, rank_cpus
from quire.executor.peers import Ends
from quire.parallel.grid import Grid
from quire.system.frames import MOST_BYTES

logger = logging.getLogger(__name__)

END_SECONDS = 5.0
"""Maximum time between the end of a connection and the end of its process."""
LEAST_LOAD_SECONDS, LOAD_TIMES = 600.0, 10.0
"""How long workers may load after worker 0 has: at least so many seconds, or so many times as long
as it took."""

Kind = TypeVar("Kind", bound=frames.Fit | frames.Loaded | frames.Outcome | frames.Answer)


class Team:
    """Worker 0's connections to the other workers' processes.

    A process ends with its connection and with its parent, in any state. The shared memory has no
    name, so nothing remains of it.

    Args:
        shares: the configuration of each worker.
        memory: descriptor of the workers' shared memory.
        on_lost: called, in a separate thread, with the exit status of a process that ended
            unexpectedly.
        cluster: the other machines, if there are any.
    """

    def __init__(
        self,
        shares: Sequence[EngineConfig],
        memory: int,
        on_lost: Callable[[int], None],
        cluster: Cluster | None = None,
    ) -> None:
        share = shares[0].share
        assert share is not None
        self._grid = Grid(share.ranks, share.stages, shares[0].cluster.nnodes)
        self._memory = memory
        self._ends: list[Ends] = []
        self._shares = shares
        self._patience = shares[0].step_timeout / 2
        self._on_lost = on_lost
        self._cluster = cluster
        self._here = self._grid.workers_of(0)
        self._cpus = rank_cpus(len(self._here), shares[0].num_threads)
        self._own_cpus: set[int] = set()
        self._lines: list[Connection] = []
        self._early: list[deque[frames.Outcome]] = []
        self._crew = Crew(self._grid, self._on_ended)
        self._decoder = frames.decoder(frames.FromWorker)
        self._lock = threading.Lock()  # steps and grammars may come from two threads
        self._ended = threading.Event()  # a process has ended, and `on_lost` was called
        self._closing = False
        self._began = 0.0

    def start(self) -> None:
        """Make every process load its share, and pin this thread, worker 0, to its CPUs."""
        shares = list(self._shares)
        rows: dict[int, int] = {}
        lines: dict[int, int] = {}
        if self._cluster is not None:
            rows, lines, far_shares = self._cluster.gather(self._on_ended)
            for worker, share in far_shares.items():
                shares[worker] = share
        self._ends = node_ends(self._grid, self._memory, behind=rows)
        for worker in self._here[1:]:
            ours, theirs = Pipe()
            self._crew.spawn(
                worker, os.dup(theirs.fileno()), self._ends[worker], self._cpus[worker]
            )
            theirs.close()
            self._lines.append(ours)
        self._lines += [Connection(lines[worker]) for worker in sorted(lines)]
        self._early = [deque() for _ in self._lines]
        for line, config in zip(self._lines, shares[1:], strict=True):
            self._send(line, frames.Start(config))
        self._began = time.monotonic()
        if self._cpus[0]:
            self._own_cpus = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self._cpus[0])

    @property
    def ends(self) -> Ends:
        """See `Peers`."""
        return self._ends[0]

    def agree(self, num_blocks: int, num_states: int) -> tuple[int, int]:
        """See `Peers`; these numbers fit on worker 0.

        Raises:
            QuireError: another worker cannot start.
        """
        fits = [
            frames.Fit(num_blocks, num_states),
            *self._from_all(frames.Fit, self._load_seconds()),
        ]
        blocks = min(fit.num_blocks for fit in fits)
        states = min(fit.num_states for fit in fits)
        self.send(frames.Fit(blocks, states))
        return blocks, states

    def wait_until_loaded(self) -> list[dict[str, int]]:
        """Return the other workers' facts that add up, once they have loaded."""
        return [loaded.sizes for loaded in self._from_all(frames.Loaded, self._load_seconds())]

    def _load_seconds(self) -> float:
        return max(LEAST_LOAD_SECONDS, LOAD_TIMES * (time.monotonic() - self._began))

    def failure(self) -> QuireError | None:
        """Return why another worker could not start, if it has reported it."""
        try:
            for worker, line in enumerate(self._lines, 1):
                if line.poll():
                    self._receive(worker, frames.Loaded)
        except QuireError as error:
            return error
        return None

    def send(self, message: frames.ToWorker) -> None:
        """Send a message to all other workers."""
        frame = frames.encode(message)
        with self._lock:
            for line in self._lines:
                self._send_bytes(line, frame)

    def outcomes(self) -> list[frames.Outcome]:
        """Return the outcomes of the oldest step in flight on the other workers."""
        return self._from_all(frames.Outcome)

    def answers(self) -> list[Any]:
        """Return the results of the last call on the other workers."""
        return [answer.value for answer in self._from_all(frames.Answer)]

    def _from_all(self, kind: type[Kind], seconds: float | None = None) -> list[Kind]:
        return [self._receive(worker, kind, seconds) for worker in range(1, len(self._shares))]

    def retire(self) -> None:
        """See `Executor.retire`."""
        self._closing = True
        if self._cluster is not None:
            self._cluster.retire()

    def close(self) -> None:
        """End the processes, by force after `SHUTDOWN_SECONDS`."""
        self._closing = True
        for line in self._lines:
            line.close()
        for end in self._ends[0].all[1:] if self._ends else ():
            os.close(end)
        self._ends = []
        if self._cluster is not None:
            self._cluster.close()
        self._crew.close()
        if self._own_cpus:
            os.sched_setaffinity(0, self._own_cpus)
            self._own_cpus = set()

    def _on_ended(self, status: int) -> None:
        if not self._closing:
            self._on_lost(status)
            self._ended.set()

    def _send(self, line: Connection, message: frames.ToWorker) -> None:
        self._send_bytes(line, frames.encode(message))

    def _send_bytes(self, line: Connection, frame: bytes) -> None:
        try:
            line.send_bytes(frame)
        except OSError as error:
            raise self._lost() from error

    def _receive(self, worker: int, kind: type[Kind], seconds: float | None = None) -> Kind:
        """Return the worker's next message of `kind`.

        An answer may come behind the outcomes of steps in flight, which wait for their turn.

        Raises:
            EngineDeadError: the process ended, or sent nothing for `seconds`.
            QuireError: it cannot start.
        """
        early = self._early[worker - 1]
        if early and kind is frames.Outcome:
            return cast("Kind", early.popleft())
        while (
            isinstance(message := self._next(worker, seconds), frames.Outcome)
            and kind is not frames.Outcome
        ):
            early.append(message)
        if isinstance(message, frames.Failed):
            known = class_of_code(message.code)
            if known is not None:
                raise known(message.message)
            raise EngineDeadError(f"A worker cannot start: {message.code}: {message.message}")
        assert isinstance(message, kind), f"{message} instead of {kind}"
        return message

    def _next(self, worker: int, seconds: float | None) -> frames.FromWorker:
        """Return the worker's next message; log its name if it takes very long."""
        line, name = self._lines[worker - 1], self._grid.name(worker)
        try:
            if self._patience and not line.poll(self._patience):
                logger.warning("%s has not answered for %.1f s.", name, self._patience)
            if seconds is not None and not line.poll(seconds):
                raise EngineDeadError(
                    f"{name} has not loaded its weights within {seconds:.0f} s of worker 0.",
                    fix="See its log, and whether its disk is slow or its process is stopped.",
                )
            message: frames.FromWorker = self._decoder.decode(line.recv_bytes(MOST_BYTES))
        except (EOFError, OSError) as error:
            raise self._lost() from error
        except (msgspec.MsgspecError, UnicodeDecodeError, MemoryError) as error:
            raise EngineDeadError(
                f"{name} sent an invalid message: {error}.", fix=lost().fix
            ) from None
        return message

    def _lost(self) -> EngineDeadError:
        """Return the error of a closed connection, after `on_lost` was called."""
        self._ended.wait(END_SECONDS)
        return lost()


def lost() -> EngineDeadError:
    return EngineDeadError("A process of the engine's group ended.", fix="Start the engine again.")
