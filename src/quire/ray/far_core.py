"""An engine core on a machine that Ray has chosen, lent to a front end on another one.

The core's process is `python -m quire.ray.far_core PARENT DIRECTORY SOCKET`; it ends with the
actor.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import msgspec

from quire.core.config import ClusterConfig, EngineConfig
from quire.core.errors import ConfigError, EngineDeadError, QuireError
from quire.core.log import setup_logging
from quire.executor.joining import LOCAL, Join, difference, own_join
from quire.executor.placement import Report
from quire.frontend.client.core_client import STACKS_SECONDS, STACKS_SIGNAL
from quire.parallel.handshake import HandshakeError, at, dial
from quire.parallel.heartbeat import wait_for_loss
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from quire.system.parent import end_with

DIAL_SECONDS = 30.0


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


class Asked(msgspec.Struct):
    """What a front end wants; `address` and `key` lead to its side."""

    join: Join
    address: tuple[str, int]
    key: bytes


def lend_core(name: str, asked: Asked) -> Report:
    """Run a core until it ends or its front end does; return why it ended.

    Args:
        name: of this machine.
    """
    setup_logging()
    try:
        config = own_config(name, asked.join)
        return Report(error=f"The engine core on {name} {_run(config, asked)}.")
    except QuireError as error:
        wrong = isinstance(error, ConfigError)
        what = f"The engine core on {name} cannot start: {error.what}"
        return Report(error=what, fix=error.fix, wrong=wrong)
    except (OSError, HandshakeError) as error:
        wrong = isinstance(error, HandshakeError)
        what = f"{name} cannot connect to the front end at {at(asked.address)}: {error}"
        return Report(error=what, wrong=wrong)


def own_config(name: str, wanted: Join) -> EngineConfig:
    """Return the front end's configuration, with paths, threads and memory of this machine.

    Raises:
        ConfigError: this machine has another Quire or model, or lacks something.
    """
    args = EngineArgs(**msgspec.json.decode(wanted.config.cluster.flags))
    machine = detect()
    share = min(1.0, (args.num_threads or machine.cores) / machine.cores)
    memory, available = machine.memory_bytes, machine.available_bytes
    machine = replace(
        machine, memory_bytes=int(memory * share), available_bytes=int(available * share)
    )
    own = resolve(args, machine).config
    if (why := difference(wanted, own_join(own, 1), name)) is not None:
        raise ConfigError(
            f"{why}.", fix="Install the same Quire and the same model on all machines of Ray."
        )
    local = {name: getattr(own, name) for name in LOCAL}
    return replace(wanted.config, **local, cpus=(), cluster=ClusterConfig())


def _run(config: EngineConfig, asked: Asked) -> str:
    """Connect a core to the front end; return why it ended, as the end of a sentence."""
    deadline = time.monotonic() + DIAL_SECONDS
    directory = tempfile.mkdtemp(prefix="quire-")

    def connect(core: EngineConfig | None) -> socket.socket:
        hello = msgspec.msgpack.encode(Hello(core, time.monotonic()))
        connection = dial(asked.address, asked.key, hello, deadline)
        connection.settimeout(None)
        return connection

    try:
        with connect(None) as beats, connect(config) as line:
            end = line.fileno()
            command = [sys.executable, "-m", __name__, str(os.getpid()), directory, str(end)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[end])
            line.close()  # the front end must see the process's end
            try:
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
    process.send_signal(STACKS_SIGNAL)  # it may be stuck
    try:
        process.wait(STACKS_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    return f"was stopped: {loss.name} {loss.how}"


def main(argv: list[str]) -> int:
    """Run a core until its front end or the actor ends."""
    parent, directory, end = argv
    end_with(int(parent))
    from quire.engine.process import main as core

    return core([directory, parent, end])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
