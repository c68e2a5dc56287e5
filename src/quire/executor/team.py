"""The processes of the ranks beside rank 0: started, spoken to, watched, and ended."""

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

import msgspec

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
)
from quire.system.hardware import core_cpus
from quire.system.parent import interrupts_blocked

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 5.0
END_SECONDS = 5.0
"""At most, between the end of a process's line and its own."""

Kind = TypeVar("Kind", Fit, Loaded, Outcome, Answer)


class Team:
    """Rank 0's end of the lines to the other ranks' processes.

    A process ends when its line does, and with its parent, whatever state it is in. Its memory is
    a file without a name, so that nothing is left of it.

    Args:
        shares: the configuration of each rank.
        memory: descriptor of the memory in which the ranks meet.
        on_lost: called, on a thread of its own, with the exit status of a process that has ended
            and was not asked to.
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
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self._lock = threading.Lock()  # a step and a grammar may come from two threads
        self._ended = threading.Event()  # a process has, and `on_lost` was told
        self._closing = False

    def start(self) -> None:
        """Have every process begin to load its share; this thread, rank 0, keeps to its CPUs."""
        for rank in range(1, len(self._shares)):
            self._spawn(rank)
        for line, config, cpus in zip(self._lines, self._shares[1:], self._cpus[1:], strict=True):
            self._send(line, Start(config, cpus))
        if self._cpus[0]:
            self._own_cpus = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self._cpus[0])

    def agree(self, num_blocks: int) -> int:
        """The most KV blocks that fit on every rank, of which so many fit on rank 0.

        Raises:
            QuireError: what another rank cannot start for.
        """
        agreed = min(num_blocks, *(self._hear(line, Fit).num_blocks for line in self._lines))
        self.tell(Agreed(agreed))
        return agreed

    def wait_until_loaded(self) -> None:
        for line in self._lines:
            self._hear(line, Loaded)

    def failure(self) -> QuireError | None:
        """What another rank could not start for, if it has said so."""
        try:
            for line in self._lines:
                if line.poll():
                    self._hear(line, Loaded)
        except QuireError as error:
            return error
        return None

    def tell(self, message: ToWorker) -> None:
        """Say the same to all."""
        frame = self._encoder.encode(message)
        with self._lock:
            for line in self._lines:
                self._send_bytes(line, frame)

    def outcomes(self) -> list[Outcome]:
        """What became of the last step on every rank but the first."""
        return [self._hear(line, Outcome) for line in self._lines]

    def answers(self) -> list[Any]:
        """What the last call returned on every rank but the first."""
        return [self._hear(line, Answer).value for line in self._lines]

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
        """Start a rank's process and wait for its end. The system ends it with the thread that has
        started it: this one, which therefore outlives it."""
        files = (line.fileno(), self.memory)
        words = [*map(str, files), str(os.getpid())]
        try:
            with interrupts_blocked():
                process = subprocess.Popen(
                    [sys.executable, "-m", "quire.executor.rank", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # its chatter must not mix with what the user asked for
                    pass_fds=files,
                )
            self._processes.append(process)
        finally:
            line.close()
            started.set()
        status = process.wait()
        if not self._closing:
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            logger.error("rank %d of the model's processes has ended with %s", rank, how)
            self._on_lost(status)
            self._ended.set()

    def _send(self, line: Connection, message: ToWorker) -> None:
        self._send_bytes(line, self._encoder.encode(message))

    def _send_bytes(self, line: Connection, frame: bytes) -> None:
        try:
            line.send_bytes(frame)
        except OSError as error:
            raise self._lost() from error

    def _hear(self, line: Connection, kind: type[Kind]) -> Kind:
        """The next message, which is of `kind`.

        Raises:
            EngineDeadError: the process has gone.
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
        assert isinstance(message, kind), f"{message} in place of {kind}"
        return message

    def _lost(self) -> EngineDeadError:
        """The error of a line that has ended; first `on_lost` hears how its process did."""
        self._ended.wait(END_SECONDS)
        return lost()


def lost() -> EngineDeadError:
    """The error where a rank has gone."""
    return EngineDeadError(
        "A process of the tensor-parallel group has gone.", fix="Start the engine again."
    )


def rank_cpus(ranks: int, threads: int) -> list[list[int]]:
    """Each rank's CPUs: those of neighbouring cores, as many for each; none where its `threads`
    could not have a core each."""
    cores = core_cpus()
    if ranks * threads > len(cores):
        return [[] for _ in range(ranks)]
    first = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    return [
        [cpu for core in cores[first[rank] : first[rank + 1]] for cpu in core]
        for rank in range(ranks)
    ]
