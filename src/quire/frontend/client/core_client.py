"""The front end's connection to the engine core."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import msgspec

from quire.core import messages
from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, InvalidRequestError, QuireError, class_of_code
from quire.frontend.client.core_process import CORE_COMMAND, CoreProcess
from quire.frontend.client.interface import CoreClient, DeathHandler, MessageHandler
from quire.frontend.workers.child import Exit
from quire.system.frames import ClosedError
from quire.system.proc import oom_kills

logger = logging.getLogger(__name__)

STAND_BY = "stand-by"
"""Makes the core's process import everything before it reads its configuration."""
SHUTDOWN_SECONDS = 5.0
HURRIED_SECONDS = 0.5
"""The same after a drain that ran out of time."""
STEP_SECONDS = 0.5
"""How long a core may go on with its present step, before it gets SIGTERM."""
LAST_WORDS_SECONDS = 0.1
"""After the core's exit, how long to wait for the frame that says why."""
STACKS_SIGNAL = signal.SIGUSR1
"""Makes the core write the stacks of all its threads to stderr."""
STACKS_SECONDS = 0.5
"""How long the core gets to write them."""


class ProcessClient:
    """An engine core in a child process, over a socket pair.

    One client serves one process; another core needs another client. All methods but `begin`,
    `configure` and `shutdown` belong to the event loop that `start` ran in.

    Args:
        process: one that has begun already.
    """

    separate = True

    def __init__(
        self, command: Sequence[str] = CORE_COMMAND, process: CoreProcess | None = None
    ) -> None:
        self.patience = SHUTDOWN_SECONDS
        self._command = command
        self.frames = messages.FrameDecoder[messages.CoreMessage](messages.CoreMessage)
        self._encoder = msgspec.msgpack.Encoder()
        self._error: QuireError | None = None
        self._core: CoreProcess | None = None
        self._ready: asyncio.Future[messages.Ready] | None = None
        self._exit: Exit | None = None
        self._configured = False
        self._reading = False
        if process is not None:
            self._take(process)

    @classmethod
    def begun(cls, command: Sequence[str]) -> ProcessClient:
        """Return a client whose core imports its modules while the arguments are resolved."""
        client = cls(command)
        client.begin()
        return client

    def begin(self, cpus: Sequence[int] = ()) -> None:
        """Start the core's process, unless it runs; it imports its modules until `configure`."""
        if self._core is None:
            self._take(CoreProcess(self._command, cpus=cpus))

    def configure(self, config: EngineConfig) -> None:
        """Send the core its configuration, once; it then loads its model. `start` calls this."""
        if not self._configured:
            self._configured = True
            config = replace(config, marks_path=str(self.suspects.path))
            self._begun.socket.send(msgspec.msgpack.encode(config))

    def prepare(self, cpus: Sequence[int] = ()) -> None:
        """Start the core's process: it imports everything at low priority and stands by."""
        core = CoreProcess(self._command, STAND_BY, cpus=cpus)
        self._take(core)
        self._exit = Exit(core.popen)  # nobody else looks at it before `start`

    @property
    def prepared(self) -> bool:
        """Return whether the prepared process lives and has reported that it stands by."""
        core = self._core
        return core is not None and core.popen.poll() is None and core.socket.has_input()

    async def start(
        self, config: EngineConfig, on_message: MessageHandler, on_death: DeathHandler
    ) -> messages.Ready:
        """Start the core, unless its process runs; wait until its model is loaded.

        Raises:
            QuireError: of the class that the core raised at its start;
                EngineDeadError if it ended without an error message.
        """
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        self._on_message, self._on_death = on_message, on_death
        self._stop_waiting()
        try:
            self.begin(config.cpus)
            threading.Thread(
                target=self._watch, args=(self._begun,), name="core-watch", daemon=True
            ).start()
            self.configure(config)
            self._loop.add_reader(self._begun.socket, self._read)
            self._reading = True
            return await self._ready
        except BaseException:
            self.shutdown()
            raise

    @property
    def pid(self) -> int:
        """Return the core's process id."""
        return self._begun.popen.pid

    def send(self, message: messages.CoreInput) -> None:
        """Send without waiting.

        Raises:
            EngineDeadError: there is no core.
            InvalidRequestError: the message holds a value that msgpack cannot encode.
        """
        if self._error is not None:
            raise self._error
        try:
            self._begun.socket.send(self._encoder.encode(message))
        except (OverflowError, TypeError, UnicodeError) as error:
            raise InvalidRequestError(f"The request cannot be sent to the core: {error}.") from None

    def end_stuck(self, error: QuireError) -> None:
        """Make the core dump its threads' stacks to the log; report it dead soon after."""
        self.suspects.look()
        # A signal handler in C writes the dump, even if a thread holds the GIL. A stopped process
        # writes it once SIGCONT continues it.
        for number in (STACKS_SIGNAL, signal.SIGCONT):
            self._begun.popen.send_signal(number)
        self._loop.call_later(STACKS_SECONDS, self._die_stuck, error)

    async def discard(self) -> None:
        """Kill the core, wait for its end and remove its files."""
        if self._core is not None:
            self._core.popen.kill()
            with contextlib.suppress(RuntimeError):  # no thread is to be had: `shutdown` waits
                await asyncio.to_thread(self._core.popen.wait)
        self.shutdown()

    async def end(self) -> None:
        """See `CoreClient`."""
        for seconds in self._stop(is_final=False):
            await asyncio.to_thread(self._wait_for_end, seconds)
        self.shutdown()

    def shutdown(self) -> None:
        """Stop the core, by force after `patience`, and remove its files."""
        stop_together([self])
        self._error = self._error or EngineDeadError("The engine has been shut down.")
        self._stop_reading()
        self._stop_waiting()
        if self._core is not None:
            self._core.remove()

    def _take(self, process: CoreProcess) -> None:
        self._core, self.suspects = process, process.suspects

    @property
    def _begun(self) -> CoreProcess:
        assert self._core is not None, "the core's process has not begun"
        return self._core

    def _watch(self, process: CoreProcess) -> None:
        """Wait, in its own thread, for the core's exit and report it to the event loop."""
        status = process.popen.wait()
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        fix = "Start the engine again."
        if status in (-signal.SIGKILL, 1) and oom_kills() > process.oom_kills:
            fix = (
                "The kernel ended a process because memory ran out: lower "
                "--gpu-memory-utilization, or raise the memory limit."
            )
        error = EngineDeadError(f"The engine core has ended {how}.", fix=fix)
        if self._error is None:
            self.suspects.on_exit(status)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(
                self._loop.call_later, LAST_WORDS_SECONDS, self._die, error
            )

    def _read(self) -> None:
        """Handle the frames that have come."""
        try:
            frames = self._begun.socket.receive(wait=False)
        except ClosedError:
            self._stop_reading()  # the process's end is about to be reported
            return
        for frame in frames:
            if not self._reading:
                return
            if (message := self.frames.decode(frame)) is None:
                continue
            try:
                self._dispatch(message)
            except Exception as error:
                logger.exception("the front end failed on a message of the core")
                self._die(EngineDeadError(f"The front end failed: {type(error).__name__}."))

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._begun.socket)

    def _stop_waiting(self) -> None:
        if self._exit is not None:
            self._exit.close()

    def _dispatch(self, message: messages.CoreMessage) -> None:
        assert self._ready is not None
        match message:
            case messages.Standing():
                pass
            case messages.Ready():
                if not self._ready.done():
                    self._ready.set_result(message)
            case messages.CoreFailed():
                self._die(_error_of(message, starting=not self._ready.done()))
            case _:
                self._on_message(message)

    def _die(self, error: QuireError) -> None:
        """Report the core's death once, with the first cause, and read no more of its frames.

        A stuck core may still send something, but its requests may run in another core by then.
        """
        if self._error is not None:
            return
        self._error = error
        self._stop_reading()
        assert self._ready is not None
        if self._ready.done():
            self._on_death(error)
        else:
            self._ready.set_exception(error)

    def _die_stuck(self, error: QuireError) -> None:
        if self._error is None:
            self.suspects.on_stuck()
        self._die(error)

    def _stop(self, *, is_final: bool = True) -> Iterator[float]:
        """Stop the process by ever stronger means; yield the longest wait after each of them.

        SIGTERM is final, too.
        """
        if self._core is None:
            return
        process = self._core.popen
        if self._listens:
            with contextlib.suppress(EngineDeadError):
                self.send(messages.Shutdown(is_final))
            yield min(STEP_SECONDS, self.patience) if is_final else self.patience
        else:  # a core that loads, or computes a step, does not read its socket
            yield 0.0
        if is_final:
            process.terminate()
            yield self.patience
        if process.poll() is None:
            logger.warning("the engine core did not stop in %.1f s; killed", self.patience)
            process.kill()
            process.wait()

    def _wait_for_end(self, seconds: float) -> None:
        if self._core is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._core.popen.wait(seconds)

    @property
    def _listens(self) -> bool:
        """Whether the core reads its socket, between two steps."""
        loaded = self._ready is not None and self._ready.done() and not self._ready.cancelled()
        return loaded and self._error is None


def stop_together(clients: Iterable[CoreClient | None]) -> None:
    """Stop the processes of several cores at the same time, by force after their patience."""
    cores = [client for client in clients if isinstance(client, ProcessClient)]
    for waits in zip_longest(*(core._stop() for core in cores), fillvalue=0.0):
        end = time.monotonic() + max(waits)
        for core in cores:
            core._wait_for_end(end - time.monotonic())


def _error_of(message: messages.CoreFailed, *, starting: bool) -> QuireError:
    """Return the core's error, in its own class if the user can act on it."""
    kind = class_of_code(message.code)
    if starting and kind is not None:
        return kind(message.message)
    when = "while it started" if starting else "while it ran"
    return EngineDeadError(
        f"The engine core failed {when}: {message.code}: {message.message}",
        fix="Its log above has the details.",
    )
