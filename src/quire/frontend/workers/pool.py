"""Worker processes whose clients take turns."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Generic, TypeVar

import msgspec

from quire.core.errors import EngineDeadError
from quire.frontend.workers.child import LOST, Child
from quire.frontend.workers.pipe import LONGEST
from quire.frontend.workers.turns import Turns
from quire.system.patience import patient_timeout
from quire.system.records import dataclass

logger = logging.getLogger(__name__)
T = TypeVar("T")

CLIENT = ContextVar("CLIENT", default="")
"""Who asks. A server sets it for each request."""
ABANDONED_SECONDS = 1.0
"""How long a process may work for a cancelled caller. A new one takes as long to start."""
SPARE_SECONDS = 60.0
"""How long processes beyond the first stay without a question."""
OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit statuses of processes that the system or the user ended; the question is not to blame."""


class DeadlyError(Exception):
    """The question ended its process, or two of them were ended from outside.

    Attributes:
        status: the exit status of the last one.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


@dataclass(slots=True, eq=False)
class _Job:
    """A question, who asks it, and its process."""

    request: bytes
    client: str
    worker: Child
    abandoned: bool = False


class WorkerPool(Generic[T]):
    """Child processes that answer questions, one each at a time.

    Other questions wait, and clients take turns (`Turns`, by `CLIENT`). A process that dies is
    replaced. If it was ended from outside, the new one gets its question, once. A cancelled caller
    leaves the queue. If a process has its question already, the process is replaced after
    `ABANDONED_SECONDS`.

    Args:
        size: most processes. `start` starts all, for good. Else questions start them, and all but
            one end after `SPARE_SECONDS` without questions.
        command: of a process.
        setup: the first frame that it reads.
        decoder: of its answers.
        name: of a process, in the log.
        seconds: for one answer; None sets no limit.
        spare: processes that only clients without one get, so that no client fills all of them.
        longest: bytes of an answer.

    Attributes:
        num_abandoned: questions that are processed for cancelled callers.
    """

    def __init__(
        self,
        size: int,
        command: Sequence[str],
        setup: bytes,
        decoder: msgspec.msgpack.Decoder[T],
        name: str,
        seconds: float | None = None,
        spare: int = 0,
        longest: int = LONGEST,
    ) -> None:
        self.num_abandoned = 0
        self._size = size
        self._command = command
        self._setup = setup
        self._decoder = decoder
        self._name = name
        self._seconds = seconds
        self._longest = longest
        self._turns = Turns(size, spare)
        self._workers: set[Child] = set()
        self._idle: list[Child] = []
        self._tasks: set[asyncio.Task[T]] = set()
        self._closed = False
        self._kept = 1
        self._spare_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self._kept = self._size
        self._idle += [await self._spawn() for _ in range(self._size)]

    async def ask(self, request: bytes) -> T:
        """Return the answer to a frame.

        Raises:
            DeadlyError: it ended its process.
            TimeoutError: it took too long, or SIGPROF ended the process: its timer of CPU time.
            ValueError: the answer is too long, or `decoder` cannot read it.
            EngineDeadError: `shutdown` was called.
        """
        client = CLIENT.get()
        job = _Job(request, client, await self._take(client))
        task = asyncio.create_task(self._work(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._abandon(job, task)
            raise

    def shutdown(self) -> None:
        """Stop the processes; callers fail. Harmless when repeated."""
        self._closed = True
        self._turns.fail(closed_error())
        while self._workers:
            self._workers.pop().end()

    async def _take(self, client: str) -> Child:
        """Return a process when it is the client's turn."""
        if self._closed:
            raise closed_error()
        await self._turns.take(client)
        try:
            if not self._idle:
                return await self._spawn()
            worker = self._idle.pop()
            alive = worker.process.poll() is None
            return worker if alive else await self._replace(worker)
        except BaseException:
            self._turns.give(client)
            raise

    async def _work(self, job: _Job) -> T:
        status = 0
        try:
            for _ in range(2):
                try:
                    async with patient_timeout(self._seconds):
                        answer = await job.worker.ask(job.request, self._longest)
                    return self._decoder.decode(answer)
                except (TimeoutError, ValueError) as error:  # msgspec's errors are ValueErrors
                    late = isinstance(error, TimeoutError)
                    job.worker = await self._replace(job.worker, expected=late)
                    raise
                except LOST:
                    lost = job.worker
                    job.worker = await self._replace(lost, expected=job.abandoned)
                status = lost.process.returncode
                if status == -signal.SIGPROF:
                    raise TimeoutError
                if job.abandoned or status not in OUTSIDE:
                    break
        finally:
            self._idle.append(job.worker)
            self._turns.give(job.client)
            self._expect_more()
        raise DeadlyError(status)

    def _expect_more(self) -> None:
        """Let processes that no question needs end, unless one comes soon."""
        if self._spare_timer is not None:
            self._spare_timer.cancel()
        self._spare_timer = None
        if len(self._workers) > self._kept:
            loop = asyncio.get_running_loop()
            self._spare_timer = loop.call_later(SPARE_SECONDS, self._end_spare)

    def _end_spare(self) -> None:
        while self._idle and len(self._workers) > self._kept:
            worker = self._idle.pop()
            self._workers.discard(worker)
            worker.end()

    def _abandon(self, job: _Job, task: asyncio.Task[T]) -> None:
        """Let the process finish within `ABANDONED_SECONDS`, else end it."""
        if task.done():
            return
        self.num_abandoned += 1
        job.abandoned = True

        def end() -> None:
            job.worker.process.kill()

        timer = asyncio.get_running_loop().call_later(ABANDONED_SECONDS, end)

        def ended(task: asyncio.Task[T]) -> None:
            self.num_abandoned -= 1
            timer.cancel()
            if not task.cancelled():
                task.exception()  # retrieve it: the caller is cancelled

        task.add_done_callback(ended)

    async def _replace(self, dead: Child, *, expected: bool = False) -> Child:
        if self._closed:
            raise closed_error()
        self._workers.discard(dead)
        status = dead.end()
        if not expected:
            logger.warning("%s ended with status %d; another replaces it", self._name, status)
        return await self._spawn()

    async def _spawn(self) -> Child:
        worker = await Child.start(self._command)
        worker.writer.write(self._setup)
        self._workers.add(worker)
        if self._closed:  # meanwhile
            self.shutdown()
        return worker


def closed_error() -> EngineDeadError:
    return EngineDeadError("The engine has been shut down.")
