"""The processes of the other ranks: start them, exchange messages, watch and end them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, QuireError, class_of_code
from quire.executor.frames import (
    Agreed,
    Answer,
    Failed,
    Fit,
    FromWorker,
    Loaded,
    Outcome,
    Start,
    ToWorker,
    decoder,
    encode,
)
from quire.system.hardware import core_cpus
from quire.system.parent import interrupts_blocked

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5.0
END_SECONDS = 5.0
"""Maximum time between the end of a connection and the end of its process."""

Kind = TypeVar("Kind", Fit, Loaded, Outcome, Answer)


class Team:
    """Rank 0's connections to the other ranks' processes.

    A process ends with its connection and with its parent, in any state. The shared memory has no
    name, so nothing remains of it.

    Args:
        shares: the configuration of each rank.
        memory: descriptor of the ranks' shared memory.
        on_lost: called, in a separate thread, with the exit status of a process that ended
            unexpectedly.
    """

    def __init__(
        self, shares: Sequence[EngineConfig], memory: int, on_lost: Callable[[int], None]
    ) -> None:
        self.memory = memory
        self._shares = shares
        self._on_lost = on_lost
        self._cpus = rank_cpus(len(shares), shares[0].num_threads)
        self._own_cpus: set[int] = set()
        self._lines: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._decoder = decoder(FromWorker)
        self._lock = threading.Lock()  # steps and grammars may come from two threads
        self._ended = threading.Event()  # a process has ended, and `on_lost` was called
        self._closing = False

    def start(self) -> None:
        """Make every process load its share, and pin this thread, rank 0, to its CPUs."""
        for rank in range(1, len(self._shares)):
            self._spawn(rank)
        for line, config, cpus in zip(self._lines, self._shares[1:], self._cpus[1:], strict=True):
            self._send(line, Start(config, cpus))
        if self._cpus[0]:
            self._own_cpus = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self._cpus[0])

    def agree(self, num_blocks: int) -> int:
        """Return the number of KV blocks that fit on every rank; `num_blocks` fit on rank 0.

        Raises:
            QuireError: another rank cannot start.
        """
        agreed = min(num_blocks, *(self._receive(line, Fit).num_blocks for line in self._lines))
        self.send(Agreed(agreed))
        return agreed

    def wait_until_loaded(self) -> None:
        for line in self._lines:
            self._receive(line, Loaded)

    def failure(self) -> QuireError | None:
        """Return why another rank could not start, if it has reported it."""
        try:
            for line in self._lines:
                if line.poll():
                    self._receive(line, Loaded)
        except QuireError as error:
            return error
        return None

    def send(self, message: ToWorker) -> None:
        """Send a message to all ranks."""
        frame = encode(message)
        with self._lock:
            for line in self._lines:
                self._send_bytes(line, frame)

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of the last step on the other ranks."""
        return [self._receive(line, Outcome) for line in self._lines]

    def answers(self) -> list[Any]:
        """Return the results of the last call on the other ranks."""
        return [self._receive(line, Answer).value for line in self._lines]

    def close(self) -> None:
        """End the processes, by force after `SHUTDOWN_SECONDS`."""
        self._closing = True
        for line in self._lines:
            line.close()
        for process in self._processes:
            try:
                process.wait(SHUTDOWN_SECONDS)
            except subprocess.TimeoutExpired:
                logger.warning("a worker did not stop in %.0f s; killed", SHUTDOWN_SECONDS)
                process.kill()
        for thread in self._threads:
            thread.join()
        if self._own_cpus:
            os.sched_setaffinity(0, self._own_cpus)
            self._own_cpus = set()

    def _spawn(self, rank: int) -> None:
        ours, theirs = Pipe()
        started = threading.Event()
        thread = threading.Thread(
            target=self._run, args=(rank, theirs, started), name=f"rank-{rank}", daemon=True
        )
        thread.start()
        started.wait()
        self._lines.append(ours)
        self._threads.append(thread)

    def _run(self, rank: int, line: Connection, started: threading.Event) -> None:
        """Start a rank's process and wait for its end. The system ends a process with the thread
        that started it, so this thread waits."""
        files = (line.fileno(), self.memory)
        words = [*map(str, files), str(os.getpid())]
        try:
            with interrupts_blocked():
                process = subprocess.Popen(
                    [sys.executable, "-m", "quire.executor.rank", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # its output must not mix with the command's
                    pass_fds=files,
                )
            self._processes.append(process)
        finally:
            line.close()
            started.set()
        status = process.wait()
        if not self._closing:
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            logger.error("The process of rank %d ended with %s.", rank, how)
            self._on_lost(status)
            self._ended.set()

    def _send(self, line: Connection, message: ToWorker) -> None:
        self._send_bytes(line, encode(message))

    def _send_bytes(self, line: Connection, frame: bytes) -> None:
        try:
            line.send_bytes(frame)
        except OSError as error:
            raise self._lost() from error

    def _receive(self, line: Connection, kind: type[Kind]) -> Kind:
        """Return the next message, which must be of `kind`.

        Raises:
            EngineDeadError: the process ended.
            QuireError: it cannot start.
        """
        try:
            message = self._decoder.decode(line.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if isinstance(message, Failed):
            known = class_of_code(message.code)
            if known is not None:
                raise known(message.message)
            raise EngineDeadError(f"A rank cannot start: {message.code}: {message.message}")
        assert isinstance(message, kind), f"{message} instead of {kind}"
        return message

    def _lost(self) -> EngineDeadError:
        """Return the error of a closed connection, after `on_lost` was called."""
        self._ended.wait(END_SECONDS)
        return lost()


def lost() -> EngineDeadError:
    """Return the error of a lost rank."""
    return EngineDeadError(
        "A process of the tensor-parallel group ended.", fix="Start the engine again."
    )


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
