"""An engine core that this machine lends to a front end on another one.

Its process is `python -m quire.frontend.far.lent PARENT DIRECTORY SOCKET`; it ends with the process
that started it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from quire.core.config import ClusterConfig, EngineConfig
from quire.core.errors import EngineDeadError
from quire.executor.joining import LOCAL
from quire.frontend.client.core_client import STACKS_SECONDS, STACKS_SIGNAL
from quire.parallel.heartbeat import GoodbyeError, wait_for_loss
from quire.system.parent import end_with


class Hello(msgspec.Struct, array_like=True):
    """The first frame of a connection to the front end's side.

    Attributes:
        config: with which the core starts; None on the connection that carries heartbeats.
        clock: this machine's monotonic clock.
    """

    config: EngineConfig | None
    clock: float


_hellos = msgspec.msgpack.Decoder(Hello)


def hello_of(frame: bytes) -> Hello:
    """Return the first frame of a connection; raise `EngineDeadError` if it is something else."""
    try:
        return _hellos.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, MemoryError) as error:
        raise EngineDeadError(f"A core of a replica sent no valid message: {error}.") from None


def lent_config(wanted: EngineConfig, own: EngineConfig) -> EngineConfig:
    """Return the front end's configuration, with paths, threads and memory of this machine."""
    local = {name: getattr(own, name) for name in LOCAL}
    return replace(wanted, **local, cpus=own.cpus, cluster=ClusterConfig(), marks_path=None)


def run_core(
    line: socket.socket, beats: socket.socket, cpus: Sequence[int] = (), folder: str | None = None
) -> str:
    """Run a core that is connected to its front end; return why it ended, as the end of a sentence.

    Raises:
        GoodbyeError: the front end was stopped on purpose.

    Args:
        line: the core's connection; is closed here.
        beats: connection on which both machines send heartbeats.
        folder: for the core's own directory; None: the system's.
    """
    directory = tempfile.mkdtemp(prefix="quire-", dir=folder)
    try:
        end = line.fileno()
        command = [sys.executable, "-m", __name__, str(os.getpid()), directory, str(end)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[end])
        line.close()  # the front end must see the process's end
        try:
            if cpus:
                with suppress(OSError):  # it has ended already
                    os.sched_setaffinity(process.pid, cpus)
            return _watched(process, beats)
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _watched(process: subprocess.Popen[bytes], beats: socket.socket) -> str:
    """Wait for the end of the core or of its front end; return which, and why."""
    ended = os.pidfd_open(process.pid)
    try:
        loss = wait_for_loss({beats: "its front end"}, woken={ended: "the core"})
    finally:
        os.close(ended)
    if process.poll() is not None:
        return f"has ended with status {process.returncode}"
    if loss.is_final:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STACKS_SECONDS)
        raise GoodbyeError("it was stopped")
    for number in (0, STACKS_SIGNAL, signal.SIGKILL):  # it mostly ends by itself, or may be stuck
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STACKS_SECONDS)
            break
    return f"was stopped: {loss.name} {loss.how}"


def main(argv: list[str]) -> int:
    """Run a core until its front end or its parent ends."""
    parent, directory, end = argv
    end_with(int(parent))
    from quire.engine.process import main as core

    return core([directory, parent, end])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
