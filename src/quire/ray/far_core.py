"""An engine core on a machine that Ray has chosen, lent to a front end on another one."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError, QuireError
from quire.core.log import setup_logging
from quire.executor.joining import Join, difference, own_join
from quire.executor.placement import Report
from quire.frontend.far.lent import Hello, lent_config, run_core
from quire.parallel.handshake import HandshakeError, at, dial
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect

DIAL_SECONDS = 30.0


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
        return Report.of(error, f"The engine core on {name} cannot start: ")
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
    return lent_config(wanted.config, own)


def _run(config: EngineConfig, asked: Asked) -> str:
    """Connect a core to the front end; return why it ended, as the end of a sentence."""
    deadline = time.monotonic() + DIAL_SECONDS

    def connect(core: EngineConfig | None) -> socket.socket:
        hello = msgspec.msgpack.encode(Hello(core, time.monotonic()))
        connection = dial(asked.address, asked.key, hello, deadline)
        connection.settimeout(None)
        return connection

    with connect(None) as beats, connect(config) as line:
        return run_core(line, beats)
