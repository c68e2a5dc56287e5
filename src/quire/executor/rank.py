"""The process of a worker: `python -m quire.executor.rank PARENT_PID LINE MEMORY BEFORE BEHIND`.

LINE, MEMORY, BEFORE and BEHIND are inherited descriptors: the connection to its executor, and what
it shares with other workers (`executor.peers.Ends`). It ends when the connection closes, and when
its parent ends.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
from multiprocessing.connection import Connection

from msgspec.structs import replace

from quire.core.errors import EngineDeadError, QuireError
from quire.core.log import setup_logging
from quire.executor import frames
from quire.executor.base import Prepare
from quire.executor.facts import summed_facts
from quire.executor.peers import Ends
from quire.system import env
from quire.system.frames import MOST_BYTES
from quire.system.parent import end_with

logger = logging.getLogger(__name__)


class RankProcess:
    """Computes each step of the executor: with its stage's other ranks, behind the stage before."""

    def __init__(self, line: Connection, ends: Ends) -> None:
        self.ends = ends
        self._line = line
        self._decoder = frames.decoder(frames.ToWorker)
        self._request_ids: list[str] = []

    def run(self) -> None:
        """Load the model's share and compute until the connection closes."""
        start = self._receive()
        assert isinstance(start, frames.Start)
        env.let_idle_threads_sleep()  # before OpenMP is loaded
        from quire.executor.worker import Worker

        share = start.config.share
        assert share is not None
        self._answers = share.rank == 0 and share.stage == share.stages - 1
        self._worker = Worker(start.config, self)
        try:
            self._load()
            while True:
                self._handle(self._receive())
        finally:
            self._worker.shutdown()

    def _load(self) -> None:
        try:
            self._worker.start()
        except EOFError:
            raise
        except Exception as error:
            code = error.code if isinstance(error, QuireError) else type(error).__name__
            self._send(frames.Failed(code, str(error)))
            self._worker.place.fail()  # after the reason was sent
            if not isinstance(error, QuireError):
                logger.exception("a rank cannot start")
        else:
            self._send(frames.Loaded(summed_facts(self._worker.facts)))

    def agree(self, num_blocks: int, num_states: int) -> tuple[int, int]:
        """See `Peers`."""
        self._send(frames.Fit(num_blocks, num_states))
        agreed = self._receive()
        assert isinstance(agreed, frames.Fit)
        return agreed.num_blocks, agreed.num_states

    def _handle(self, message: frames.ToWorker) -> None:
        match message:
            case Prepare():
                self._worker.prepare(message)
            case frames.Call():
                self._send(frames.Answer(self._worker.call(message.method, message.args)))
            case frames.Step():
                self._send(self._outcome(message))

    def _outcome(self, step: frames.Step) -> frames.Outcome:
        if step.same_requests:
            step.batch = replace(step.batch, request_ids=self._request_ids)
        self._request_ids = step.batch.request_ids
        try:
            output = self._worker.execute_together(step)
        except (EngineDeadError, EOFError):
            raise
        except Exception as error:  # the executor raises and logs it too
            logger.debug("a step failed", exc_info=True)
            return frames.Outcome.failed(error)
        return frames.Outcome.of(output, whole=self._answers)

    def _receive(self) -> frames.ToWorker:
        message: frames.ToWorker = self._decoder.decode(self._line.recv_bytes(MOST_BYTES))
        return message

    def _send(self, message: frames.FromWorker) -> None:
        self._line.send_bytes(frames.encode(message))


def main(argv: list[str]) -> int:
    """Run a rank until its connection closes; return the exit status."""
    parent, line, *ends = map(int, argv)
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    faulthandler.enable()
    setup_logging()
    if not logging.getLogger("quire").isEnabledFor(logging.DEBUG):
        logging.getLogger("quire").setLevel(logging.WARNING)  # rank 0 logs the rest
    try:
        RankProcess(Connection(line), Ends(*ends)).run()
    except (EOFError, OSError):  # the executor closed the connection
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
