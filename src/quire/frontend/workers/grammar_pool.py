"""Processes that check structures, so that none of them ends the server's own."""

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
from quire.frontend.workers.grammar_worker import ADDRESS_BYTES, CPU_SECONDS, READY, Checked, Setup
from quire.frontend.workers.pipe import frame
from quire.text.grammar_writer import MAX_WRITTEN_BYTES

logger = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "quire.frontend.workers.grammar_worker")
MOST_PROCESSES = 2
"""So many structures may be hard to compile at a time; more, and new ones wait in line."""
BUSY_SECONDS = 0.1
"""A structure that waits longer gets a process more; most take milliseconds."""
ABANDONED_SECONDS = 0.5
"""How long a process may go on with a structure that nobody waits for. A new one starts as
fast."""
START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
"""On the clock: for a process that sleeps, or was stopped. One that computes ends itself."""
LONGEST_ANSWER = 2 * MAX_WRITTEN_BYTES + 2**16
OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""Ended so, it was the system's or somebody's wish, and no fault of a structure."""


class DeadlyError(Exception):
    """A structure that has ended the process in which it was checked; says how."""


class GrammarPool:
    """Starts a process with the first structure, and another where one takes long.

    One stays while nobody asks; one that ends is replaced when the next is needed.

    Args:
        specials: the model's control tokens, ids by names.

    Attributes:
        num_lost: processes that ended before they had answered.
        num_abandoned: structures that are checked although nobody waits for them.
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
        """What llguidance says of a structure. A caller that is cancelled leaves the queue.

        Raises:
            DeadlyError: it has ended its process.
            StructureUnavailableError: there is no process to check it.
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
                raise DeadlyError("checking it ended in nonsense") from None
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
        """Keep a process that answers soon although nobody waits for it; end it otherwise."""
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
        """A process that is idle; another, where there is none, or they take long."""
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
                self._lose(worker)  # while nobody asked it anything
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
                    raise ValueError("it did not say that it is ready")
        except BaseException as error:
            if worker is not None:
                worker.end()
            if not isinstance(error, (*LOST, ValueError, TimeoutError)):
                raise
            logger.error("no process to check structures can be started: %r", error)
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
        else:  # what took long is over: one is enough
            self._workers.discard(worker)
            worker.end()

    def _lose(self, worker: Child) -> int:
        """End a process that is lost; its exit status."""
        if self._closed:
            raise EngineDeadError("The engine has been shut down.") from None
        self.num_lost += 1
        self._workers.discard(worker)
        status = worker.end()
        logger.warning(
            "a process that checks structures ended with status %d; the next gets another", status
        )
        return status


def story(status: int) -> str:
    """How a structure has ended its process."""
    if status == -signal.SIGPROF:
        return f"it takes more than {CPU_SECONDS:.0f} s to compile"
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    gib = ADDRESS_BYTES / 2**30
    return f"it crashes its compiler, or needs more than {gib:.0f} GiB of memory there ({how})"
