"""The engine core's own process: `python -m quire.engine.process DIRECTORY PARENT_PID [stand-by]`.

The configuration comes as one msgpack document on standard input, requests and answers as
frames over the two sockets in DIRECTORY. With `stand-by` it first imports all that it will need,
to take the place of a core that is lost in a fraction of the time. It ends on a `Shutdown` frame,
on SIGTERM, and within a second or so when its parent is gone.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from quire.core.config import EngineConfig
from quire.core.errors import QuireError
from quire.core.log import setup_logging
from quire.core.messages import (
    BAD_FRAME,
    Call,
    CallResult,
    CoreFailed,
    CoreInput,
    CoreMessage,
    Ready,
    Shutdown,
    Standing,
)
from quire.engine.imports import begin_imports, import_all
from quire.engine.suspects import status_like
from quire.system import env
from quire.system.garbage import no_collection

if TYPE_CHECKING:
    from quire.engine.core import EngineCore

logger = logging.getLogger(__name__)

PARENT_POLL_SECONDS = 1.0
NICENESS = 5
"""Of what is done ahead: where all want time, it gets a third of what another thread does."""
LINGER_MS = 1000
"""How long unsent frames may hold up the exit."""

CoreLoader = Callable[[EngineConfig], tuple["EngineCore", Ready]]


@no_collection()
def load_core(
    config: EngineConfig, on_lost: Callable[[int], None] | None = None
) -> tuple[EngineCore, Ready]:
    """The engine core with its model loaded, and what is known of it then.

    Args:
        on_lost: called, on a thread of its own, with the status of a rank's process that is gone.

    The phase "import_engine" is reading the code; torch, which takes longer, the worker imports.
    """
    start = time.monotonic()
    env.let_idle_threads_sleep()  # before torch is imported
    from quire.engine.core import EngineCore
    from quire.executor.multiproc import make_executor

    imported = time.monotonic() - start
    core = EngineCore(config, make_executor(config, on_lost))
    ready = core.ready()
    phases = {"import_engine": imported, **ready.phases}
    return core, msgspec.structs.replace(ready, phases=phases, began=start)


def load_core_or_end(config: EngineConfig) -> tuple[EngineCore, Ready]:
    """`load_core` for a process of its own: it ends when another that computes with it does, as
    that one did, for somebody stands by to start it anew."""
    return load_core(config, on_lost=lambda status: os._exit(status_like(status)))


class CoreServer:
    """Feeds the core from one socket and sends its outputs to the other."""

    def __init__(
        self, core: EngineCore, inbox: zmq.Socket[bytes], send: Callable[[CoreMessage], None]
    ) -> None:
        self._core = core
        self._inbox = inbox
        self._send = send
        self._decoder = msgspec.msgpack.Decoder(CoreInput)
        self.num_bad_frames = 0
        self._stopping = False

    def run(self) -> None:
        """Step while there is work; sleep in the socket while there is none."""
        while True:
            self._receive()
            if self._stopping:
                return
            if (outputs := self._core.step()) is not None:
                self._send(outputs)
                self._core.watch.lap("send")

    def _receive(self) -> None:
        """Handle every frame that has come; wait for one if there is nothing else to do."""
        while not self._stopping:
            try:
                if self._core.has_work():
                    frame = self._inbox.recv(zmq.NOBLOCK)
                else:
                    self._core.watch.lap("receive")
                    frame = self._inbox.recv()
                    self._core.watch.lap("idle")
            except zmq.Again:
                return
            try:
                message = self._decoder.decode(frame)
            except BAD_FRAME as error:
                self.num_bad_frames += 1
                logger.warning("dropped a bad frame (%d so far): %s", self.num_bad_frames, error)
                continue
            self._handle(message)

    def _handle(self, message: CoreInput) -> None:
        match message:
            case Shutdown():
                self._stopping = True
            case Call(method="num_bad_frames"):
                self._send(CallResult(message.call_id, self.num_bad_frames))
            case _:
                if (answer := self._core.handle(message)) is not None:
                    self._send(answer)


def main(
    argv: list[str],
    load: CoreLoader = load_core_or_end,
    prepare: Callable[[], None] = import_all,
    begin: Callable[[], None] = begin_imports,
) -> int:
    """Run a core until it is told to stop; returns the exit status.

    Args:
        prepare: what can be done before the configuration is known, where there is time.
        begin: the same where the configuration is on its way.
    """
    directory, parent, stand_by = Path(argv[0]), int(argv[1]), bool(argv[2:])
    _die_with(parent, directory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    faulthandler.enable()  # a crash in native code says where
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # see `client.STACKS_SIGNAL`
    setup_logging()
    context = zmq.Context()
    inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket, name in ((inbox, "in"), (outbox, "out")):
        socket.set_hwm(0)  # a slow front end must not hold up the steps
        socket.connect(f"ipc://{directory / name}")
    encoder = msgspec.msgpack.Encoder()
    core: EngineCore | None = None

    def send(message: CoreMessage) -> None:
        outbox.send(encoder.encode(message))

    try:
        if stand_by:
            _at_low_priority(prepare)
            send(Standing())
        else:
            begin()
        config = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=EngineConfig)
        core, ready = load(config)
        # Until here SIGTERM just ends the process: an exit from inside an import would be loud.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        send(ready)
        CoreServer(core, inbox, send).run()
    except QuireError as error:
        logger.debug("the engine core failed", exc_info=True)
        send(CoreFailed(error.code, str(error)))
        return 1
    except Exception as error:
        logger.exception("the engine core failed")
        send(CoreFailed(type(error).__name__, str(error)))
        return 1
    finally:
        if core is not None:
            core.shutdown()
        context.destroy(linger=LINGER_MS)
    return 0


def _at_low_priority(action: Callable[[], None]) -> None:
    """Do something while others want nothing: on a thread of its own, for priority once given up
    cannot be had back."""

    def act() -> None:
        if sys.platform == "linux":  # elsewhere it belongs to processes
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        action()

    thread = threading.Thread(target=act, name="prepare")
    thread.start()
    thread.join()


def _die_with(parent: int, directory: Path) -> None:
    """Exit, and remove the sockets, soon after the parent has gone, whatever runs meanwhile."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
