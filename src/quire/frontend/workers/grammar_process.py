"""One process that checks structures for who waits: what `Structures` is to a server, for `LLM`.

A schema that crashes or hangs its compiler is an error of its prompt, and does not end the user's
process, with the work of all the others.
"""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from quire.core.errors import StructureUnavailableError
from quire.core.structured_outputs import StructuredOutputsParams, WrittenStructure
from quire.frontend.workers.child import spawn
from quire.frontend.workers.grammar_pool import (
    ANSWER_SECONDS,
    LONGEST_ANSWER,
    OUTSIDE,
    START_SECONDS,
    WORKER_COMMAND,
    DeadlyError,
    story,
)
from quire.frontend.workers.grammar_worker import READY, Checked, Setup, error_of
from quire.frontend.workers.known_structures import KnownStructures
from quire.frontend.workers.pipe import frame, read_frame
from quire.text.grammar import structure_key
from quire.text.grammar_writer import refused

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Line:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    answers: BinaryIO

    def ask(self, request: bytes, seconds: float) -> bytes:
        """Raises OSError, of which TimeoutError is one, EOFError and ValueError."""
        self.socket.settimeout(seconds)
        self.socket.sendall(request)
        answer = read_frame(self.answers, LONGEST_ANSWER)
        if not answer:
            raise EOFError
        return answer

    def end(self) -> int:
        """Kill the process, for it has nothing to lose; its exit status."""
        self.answers.close()
        self.socket.close()
        self.process.kill()
        return self.process.wait()


class GrammarProcess:
    """Checks each structure once. Starts with the first one, and again after one that has ended it.
    For one thread.

    Args:
        specials: the model's control tokens, ids by names.
    """

    def __init__(
        self, specials: Mapping[str, int] | None = None, command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        self._setup = frame(Setup(dict(specials or {})))
        self._command = command
        self._known = KnownStructures()
        self._line: _Line | None = None

    def check(self, wanted: StructuredOutputsParams) -> WrittenStructure | None:
        """Return the structure as the engine core compiles it.

        Raises:
            InvalidRequestError: an output cannot be held to this.
            StructureUnavailableError: that cannot be told now.
        """
        if (refusal := self._known.refusal(wanted)) is not None:
            raise refusal
        if (known := self._known.good(wanted)) is not None:
            return known.written
        try:
            checked = self._ask(wanted)
        except DeadlyError as error:
            self._known.learn_deadly(structure_key(wanted), str(error))
            raise refused(str(error), wanted) from None
        if (fault := error_of(checked)) is not None:
            raise fault
        self._known.learn_good(wanted, checked)
        return checked.written

    def shutdown(self) -> None:
        """End the process. Harmless when repeated."""
        self._end()

    def _end(self) -> int:
        line, self._line = self._line, None
        return 0 if line is None else line.end()

    def _ask(self, wanted: StructuredOutputsParams) -> Checked:
        for _ in range(2):
            line = self._line = self._line or self._start()
            try:
                return msgspec.msgpack.decode(line.ask(frame(wanted), ANSWER_SECONDS), type=Checked)
            except TimeoutError:
                self._end()
                raise DeadlyError(f"it was not checked in {ANSWER_SECONDS:.0f} s") from None
            except ValueError:  # msgspec's errors are of this class
                self._end()
                raise DeadlyError("checking it ended in nonsense") from None
            except (OSError, EOFError):
                status = self._end()
                logger.warning("the process that checks structures ended with status %d", status)
                if -status not in OUTSIDE:
                    raise DeadlyError(story(status)) from None
            except BaseException:  # its answer would be taken for that to the next question
                self._end()
                raise
        raise StructureUnavailableError("The process that checks structures was ended twice.")

    def _start(self) -> _Line:
        line = None
        try:
            process, ours = spawn(self._command)
            line = _Line(process, ours, ours.makefile("rb"))
            if msgspec.msgpack.decode(line.ask(self._setup, START_SECONDS)) != READY:
                raise ValueError("it did not say that it is ready")
        except (OSError, EOFError, ValueError) as error:
            if line is not None:
                line.end()
            logger.error("no process to check structures can be started: %r", error)
            raise StructureUnavailableError(
                "The process that checks structures cannot be started."
            ) from None
        return line
