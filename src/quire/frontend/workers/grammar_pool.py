"""Checks structures in child processes, because a structure may crash its compiler."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping, Sequence

import msgspec

from quire.core.errors import EngineDeadError, StructureUnavailableError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.workers.child import LOST, Child
from quire.frontend.workers.grammar_messages import (
    ADDRESS_BYTES,
    CPU_SECONDS,
    READY,
    Checked,
    Setup,
)
from quire.frontend.workers.pipe import frame
from quire.text.structures import MAX_WRITTEN_BYTES

logger = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "quire.frontend.workers.grammar_worker")
MOST_PROCESSES = 2
"""If all of them compile slow structures, new structures wait."""
BUSY_SECONDS = 0.1
"""If a structure waits longer, another process starts. Most structures take milliseconds."""
ABANDONED_SECONDS = 0.5
"""How long a process may work for a cancelled caller. A new process starts as fast."""
START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
"""Wall-clock limit, for a process that was stopped. One that computes too long ends itself."""
LONGEST_ANSWER = 2 * MAX_WRITTEN_BYTES + 2**16
OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""Signals from the system or the user; the structure is not to blame."""


class DeadlyError(Exception):
    """The structure ended the process that checked it; the message says how."""


class GrammarPool:
    """Starts a process for the first structure, and another one if that takes long.

    One process stays while there is no work. A lost process is replaced by the next request.

    Args:
        specials: the model's control tokens, name → id.

    Attributes:
        num_lost: processes that ended before they had answered.
        num_abandoned: structures that are checked for cancelled callers.
    """

    def __init__(
        self, specials: Mapping[str, int] | None = None, command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        self.num_lost = 0
        self.num_abandoned = 0
        self._setup = frame(Setup(dict(specials or {})))
        self._command = command
        self._decoder = msgspec.msgpack.Decoder(Checked)
        self._workers: set[Child] = set()
        self._starting = 0
        self._idle: asyncio.Queue[Child] = asyncio.Queue()
        self._abandoned: set[asyncio.Task[None]] = set()
        self._closed = False

    async def check(self, wanted: StructuredOutputsParams) -> Checked:
        """Return llguidance's verdict on a structure. A cancelled caller leaves the queue.

        Raises:
            DeadlyError: it ended its process.
            StructureUnavailableError: no process could check it.
        """
        request = frame(wanted)
        for _ in range(2):
            worker = await self._take()
            asked = asyncio.create_task(worker.ask(request, LONGEST_ANSWER))
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    checked = self._decoder.decode(await asyncio.shield(asked))
            except asyncio.CancelledError:
                self._abandon(worker, asked)
                raise
            except TimeoutError:
                asked.cancel()
                self._lose(worker)
                raise DeadlyError(f"it was not checked in {ANSWER_SECONDS:.0f} s") from None
            except ValueError:  # msgspec's errors are of this class
                self._lose(worker)
                raise DeadlyError("the grammar checker sent an invalid reply") from None
            except LOST:
                status = self._lose(worker)
                if -status not in OUTSIDE:
                    raise DeadlyError(story(status)) from None
            else:
                self._give_back(worker)
                return checked
        raise StructureUnavailableError("The process that checks structures was ended twice.")

    def shutdown(self) -> None:
        """Stop the processes. Harmless when repeated."""
        self._closed = True
        while self._workers:
            self._workers.pop().end()

    def _abandon(self, worker: Child, asked: asyncio.Task[bytes]) -> None:
        task = asyncio.create_task(self._finish(worker, asked))
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    async def _finish(self, worker: Child, asked: asyncio.Task[bytes]) -> None:
        """Keep the process of a cancelled caller if it answers soon; else end it."""
        self.num_abandoned += 1
        try:
            async with asyncio.timeout(ABANDONED_SECONDS):
                await asked
        except (TimeoutError, ValueError, *LOST) as error:
            if self._closed:
                return
            if not isinstance(error, TimeoutError):
                self._lose(worker)
                return
            self._workers.discard(worker)
            worker.end()
        else:
            self._give_back(worker)
        finally:
            self.num_abandoned -= 1

    async def _take(self) -> Child:
        """Return an idle process; start one if there is none or all take long."""
        while not self._closed:
            if self._count() == 0:
                return await self._start()
            try:
                async with asyncio.timeout(BUSY_SECONDS):
                    worker = await self._idle.get()
            except TimeoutError:
                if not self._starting and self._count() < MOST_PROCESSES:
                    return await self._start()
            else:
                if worker.process.poll() is None:
                    return worker
                self._lose(worker)  # it ended while idle
        raise EngineDeadError("The engine has been shut down.")

    def _count(self) -> int:
        return len(self._workers) + self._starting

    async def _start(self) -> Child:
        self._starting += 1
        worker = None
        try:
            async with asyncio.timeout(START_SECONDS):
                worker = await Child.start(self._command)
                if msgspec.msgpack.decode(await worker.ask(self._setup, LONGEST_ANSWER)) != READY:
                    raise ValueError("it sent another reply than READY")
        except BaseException as error:
            if worker is not None:
                worker.end()
            if not isinstance(error, (*LOST, ValueError, TimeoutError)):
                raise
            logger.error("cannot start a process that checks structures: %r", error)
            raise StructureUnavailableError(
                "The process that checks structures cannot be started."
            ) from None
        finally:
            self._starting -= 1
        self._workers.add(worker)
        if self._closed:
            self.shutdown()
        return worker

    def _give_back(self, worker: Child) -> None:
        if self._closed or self._idle.empty():
            self._idle.put_nowait(worker)
        else:  # the slow structure is done: one process is enough
            self._workers.discard(worker)
            worker.end()

    def _lose(self, worker: Child) -> int:
        """End a lost process and return its exit status."""
        if self._closed:
            raise EngineDeadError("The engine has been shut down.") from None
        self.num_lost += 1
        self._workers.discard(worker)
        status = worker.end()
        logger.warning(
            "the grammar checker ended with status %d; the next structure starts another", status
        )
        return status


def story(status: int) -> str:
    """Return how a structure ended its process."""
    if status == -signal.SIGPROF:
        return f"it takes more than {CPU_SECONDS:.0f} s to compile"
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    gib = ADDRESS_BYTES / 2**30
    return f"it crashes its compiler or needs more than {gib:.0f} GiB of memory there ({how})"
