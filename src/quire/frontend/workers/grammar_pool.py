"""Checks structures in child processes, because a structure may crash its compiler."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Mapping, Sequence

import msgspec

from quire.core.errors import StructureUnavailableError
from quire.core.structured_outputs import StructuredOutputsParams
from quire.frontend.workers import grammar_messages as messages
from quire.frontend.workers.child import LOST, Child
from quire.frontend.workers.pipe import frame
from quire.frontend.workers.pool import OUTSIDE, DeadlyError, WorkerPool, closed_error
from quire.system.patience import patient_timeout
from quire.text.structures import MAX_WRITTEN_BYTES

logger = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "quire.frontend.workers.grammar_worker")
MOST_PROCESSES = 3
SPARE = 1
"""Of the processes: a client's structures need not wait for another's slow ones."""
START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
"""Wall-clock limit, for a process that was stopped. One that computes too long ends itself."""
LONGEST_ANSWER = 2 * MAX_WRITTEN_BYTES + 2**16


class DeadlyStructureError(Exception):
    """The structure ended the process that checked it; the message says how."""


class GrammarPool(WorkerPool[messages.Checked]):
    """Worker processes that check structures; the first structure starts one.

    Args:
        specials: the model's control tokens, name → id.
    """

    def __init__(
        self, specials: Mapping[str, int] | None = None, command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        super().__init__(
            MOST_PROCESSES,
            command,
            frame(messages.Setup(dict(specials or {}))),
            msgspec.msgpack.Decoder(messages.Checked),
            "the grammar checker",
            ANSWER_SECONDS,
            SPARE,
            LONGEST_ANSWER,
        )

    async def check(self, wanted: StructuredOutputsParams) -> messages.Checked:
        """Return llguidance's verdict on a structure. A cancelled caller leaves the queue.

        Raises:
            DeadlyStructureError: it ended its process.
            StructureUnavailableError: no process could check it.
        """
        try:
            return await self.ask(frame(wanted))
        except TimeoutError:
            limits = f"{messages.CPU_SECONDS:g} s of CPU time or {self._seconds:g} s"
            raise DeadlyStructureError(f"it takes more than {limits} to compile") from None
        except ValueError:
            raise DeadlyStructureError("the grammar checker sent an invalid reply") from None
        except DeadlyError as error:
            if error.status not in OUTSIDE:
                raise DeadlyStructureError(story(error.status)) from None
        raise StructureUnavailableError("The process that checks structures was ended twice.")

    async def _spawn(self) -> Child:
        worker = None
        try:
            worker = await super()._spawn()
            async with patient_timeout(START_SECONDS):
                if msgspec.msgpack.decode(await worker.hear(LONGEST_ANSWER)) != messages.READY:
                    raise ValueError("it sent another reply than READY")
        except BaseException as error:
            if worker is not None:
                self._workers.discard(worker)
                worker.end()
            if not isinstance(error, (*LOST, ValueError)):
                raise
            if self._closed:
                raise closed_error() from None
            logger.error("cannot start a process that checks structures: %r", error)
            raise StructureUnavailableError(
                "The process that checks structures cannot be started."
            ) from None
        return worker


def story(status: int) -> str:
    """Return how a structure ended its process."""
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    gib = messages.ADDRESS_BYTES / 2**30
    return f"it crashes its compiler or needs more than {gib:.0f} GiB of memory there ({how})"
