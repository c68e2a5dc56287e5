"""The engine core's process: `python -m quire.engine.process DIRECTORY PARENT SOCKET [stand-by]`.

SOCKET is the descriptor of one end of a socket pair. The first frame is the configuration;
requests and answers follow. With `stand-by` the process first imports everything, so that it can
replace a lost core quickly. It ends on a `Shutdown` frame, on SIGTERM, and after its parent, whose
process id is PARENT; then it removes DIRECTORY.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, QuireError
from quire.core.log import setup_logging
from quire.core.messages import (
    Call,
    CallResult,
    CoreFailed,
    CoreInput,
    CoreMessage,
    FrameDecoder,
    Ready,
    Shutdown,
    Standing,
)
from quire.engine.suspects import status_like
from quire.system import env
from quire.system.frames import ClosedError, FrameSocket
from quire.system.garbage import no_collection
from quire.system.refusals import refusal

if TYPE_CHECKING:
    from quire.engine.core import EngineCore
    from quire.executor.base import Executor

logger = logging.getLogger(__name__)

PARENT_POLL_SECONDS = 1.0
NICENESS = 19
"""Of imports on standby where the system refuses a policy below all others."""
LINGER_SECONDS = 1.0
"""How long unsent frames may delay the exit."""

STEP_SECONDS = 0.2
"""How long a step may go on after SIGTERM."""

CoreLoader = Callable[[EngineConfig], tuple["EngineCore", Ready]]


@no_collection()
def begin_imports() -> None:
    """Import what `load_core` imports when it is imported; the rest follows with the model."""
    import quire.engine.core
    import quire.executor.choice  # noqa: F401


@no_collection()
def import_all() -> None:
    """Import what `load_core` imports, including its imports while it loads a model."""
    env.let_idle_threads_sleep()
    import quire.engine.core
    import quire.executor.choice
    import quire.models.weights.loader
    import quire.ops.cpu
    import quire.ops.providers
    import quire.profile.profiling
    import quire.runner.kv_host
    import quire.runner.runner
    import quire.sampling.grammars  # noqa: F401


@no_collection()
def load_core(
    config: EngineConfig,
    on_lost: Callable[[int], None] | None = None,
    executor: Executor | None = None,
) -> tuple[EngineCore, Ready]:
    """Return the engine core with its model loaded, and its `Ready` message.

    Args:
        on_lost: called in its own thread with the exit status of a lost rank.
        executor: see `begin_to_load`.
    """
    start = time.monotonic()
    env.let_idle_threads_sleep()  # before OpenMP is loaded
    from quire.engine.core import EngineCore
    from quire.executor.choice import make_executor

    imported = time.monotonic() - start
    events = None
    if config.kv_events is not None:
        from quire.engine.kv_events import KVEventPublisher

        events = KVEventPublisher(config.kv_events, config.block_size)
    try:
        executor = executor or make_executor(config, on_lost)
        if on_lost is not None and config.cluster.nnodes > 1:
            _retire_on_sigterm(executor)
        core = EngineCore(config, executor, events=events)
    except BaseException:
        if events is not None:
            events.close()
        raise
    ready = core.ready()
    phases = {"import_engine": imported, **ready.phases}
    return core, msgspec.structs.replace(ready, phases=phases, began=start)


@no_collection()
def begin_to_load(config: EngineConfig) -> Executor:
    """Return an executor that reads packed weights in the background, for `load_core`."""
    from quire.executor.choice import make_executor

    executor = make_executor(config)
    executor.begin()
    return executor


def _retire_on_sigterm(executor: Executor) -> None:
    """Have SIGTERM end this process after a goodbye to the machines that have joined so far."""

    def leave(*_: object) -> None:
        executor.retire()
        os._exit(0)  # in the middle of an import nothing else is quiet

    signal.signal(signal.SIGTERM, leave)


def load_core_or_end(config: EngineConfig) -> tuple[EngineCore, Ready]:
    """Do what `load_core` does; end this process, with a like status, when a rank is lost.

    The supervisor then starts the core anew.
    """
    return load_core(config, on_lost=lambda status: os._exit(status_like(status)))


class CoreServer:
    """Feeds the core with the front end's frames, and sends it the core's outputs."""

    def __init__(
        self, core: EngineCore, frames: FrameSocket, send: Callable[[CoreMessage], None]
    ) -> None:
        self._core = core
        self._socket = frames
        self._send = send
        self.frames = FrameDecoder[CoreInput](CoreInput)
        self._end: Shutdown | None = None

    def run(self) -> Shutdown:
        """Step while there is work, or wait at the socket, until `Shutdown`; return that."""
        try:
            while True:
                self._receive()
                if self._end is not None:
                    return self._end
                if (outputs := self._core.step()) is not None:
                    self._send(outputs)
                    self._core.watch.lap("send")
        except SystemExit:  # SIGTERM
            return Shutdown()

    def _receive(self) -> None:
        """Handle all waiting frames; wait for one if there is no work."""
        while self._end is None:
            if self._core.has_work():
                frames = self._socket.receive(wait=False)
                if not frames:
                    return
            else:
                self._core.watch.lap("receive")
                frames = self._socket.receive(wait=True)
                self._core.watch.lap("idle")
            for frame in frames:
                if (message := self.frames.decode(frame)) is not None:
                    self._handle(message)

    def _handle(self, message: CoreInput) -> None:
        match message:
            case Shutdown():
                self._end = message
            case Call(method="num_bad_frames"):
                self._send(CallResult(message.call_id, self.frames.num_bad))
            case _:
                if (answer := self._core.handle(message)) is not None:
                    self._send(answer)


def main(
    argv: list[str],
    load: CoreLoader = load_core_or_end,
    prepare: Callable[[], None] = import_all,
    begin: Callable[[], None] = begin_imports,
) -> int:
    """Run a core until `Shutdown`; return the exit status.

    Args:
        prepare: called on standby, before the configuration comes.
        begin: called instead if the configuration comes at once.
    """
    directory, parent, end, stand_by = Path(argv[0]), int(argv[1]), int(argv[2]), bool(argv[3:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    faulthandler.enable()  # a crash in native code prints its stack
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # see `client.STACKS_SIGNAL`
    frames = FrameSocket(socket.socket(fileno=end))
    os.set_inheritable(end, False)  # the parent must see this process's end, not its children's
    encoder = msgspec.msgpack.Encoder()
    core: EngineCore | None = None
    is_final = False

    def send(message: CoreMessage) -> None:
        frames.send(encoder.encode(message))

    try:
        setup_logging()
        die_with(parent, directory)
        if stand_by:
            _at_low_priority(prepare)
            send(Standing())
        else:
            begin()
        [config] = frames.receive(wait=True)  # no more come before `Ready` is sent
        wanted = msgspec.msgpack.decode(config, type=EngineConfig)
        if wanted.cpus:
            os.sched_setaffinity(0, wanted.cpus)  # threads that start from now on inherit it
        core, ready = load(wanted)
        # Only now: `sys.exit` inside an import would print a traceback.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        cut_steps(core, directory)
        send(ready)
        is_final = CoreServer(core, frames, send).run().is_final
    except ClosedError:  # the parent has ended
        shutil.rmtree(directory, ignore_errors=True)
        return 1
    except Exception as error:
        send(_failed(error))
        return 1
    finally:
        if core is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it has begun to end
            core.shutdown(is_final=is_final)
        frames.close(LINGER_SECONDS)
    return 0


def _failed(error: Exception) -> CoreFailed:
    """Return the report of the error that ends the core, and log what the report lacks."""
    level = logging.DEBUG
    if isinstance(error, QuireError):
        report = CoreFailed(error.code, str(error))
    elif (reason := refusal(error)) is not None:
        report = CoreFailed(EngineDeadError.code, f"The engine core has ended. {reason}")
    else:
        level, report = logging.ERROR, CoreFailed(type(error).__name__, str(error))
    logger.log(level, "the engine core failed", exc_info=error)
    return report


def _at_low_priority(action: Callable[[], None]) -> None:
    """Run `action` when cores are idle, in its own thread, because a lowered priority is final.

    Beside a load of 80 %, nice 10 delayed requests: p99 279 ms in place of 80.
    """

    def act() -> None:
        if sys.platform == "linux":  # elsewhere the priority belongs to the process
            me = threading.get_native_id()
            try:
                os.sched_setscheduler(me, os.SCHED_IDLE, os.sched_param(0))
            except OSError:
                os.setpriority(os.PRIO_PROCESS, me, NICENESS)
        action()

    thread = threading.Thread(target=act, name="prepare")
    thread.start()
    thread.join()


def cut_steps(core: EngineCore, directory: Path) -> None:
    """End this process on SIGTERM even if a long step runs, which Python's handler waits for.

    A step that is cut loses nothing: nobody reads its tokens, and torn files are misses.
    """
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)

    def watch() -> None:
        os.read(signals, 1)
        time.sleep(STEP_SECONDS)
        if core.is_computing:
            core.executor.retire()
            shutil.rmtree(directory, ignore_errors=True)
            os._exit(0)  # ranks end with it

    threading.Thread(target=watch, name="end-watch", daemon=True).start()


def die_with(parent: int, directory: Path) -> None:
    """Exit and remove the directory soon after the parent's end, whatever runs meanwhile."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
