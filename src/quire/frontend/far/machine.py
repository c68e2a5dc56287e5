"""A machine that lends its engine cores to a front end on another one, again and again.

When a core ends, or the connection to the front end does, the machine offers another one, unless
the front end has said goodbye.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from quire.core.config import EngineConfig
from quire.executor.cluster import JOIN_SECONDS, with_shutdown
from quire.executor.joining import Attach, Join, cluster_key, own_join, wait_for_reply
from quire.executor.node import dial_node
from quire.frontend.client.replica_configs import replica_configs
from quire.frontend.far.lent import Hello, lent_config, run_core
from quire.parallel.handshake import HandshakeError, at, reachable, send_frame
from quire.parallel.heartbeat import GoodbyeError
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 0.5
_ADDRESS, _RANK = "--data-parallel-address", "--data-parallel-start-rank"


def lend_cores(args: EngineArgs) -> None:
    """Lend this machine's replicas, `args.replicas`, until the front end is stopped.

    Raises:
        ConfigError: the front end refuses this machine, or has another key.
        EngineDeadError: nobody is there for `JOIN_SECONDS`.
    """
    resolved = resolve(args, detect())
    for note in resolved.notes:
        logger.info(note)
    key = cluster_key()
    where = args.data_parallel_address, args.data_parallel_rpc_port
    place = reachable(where).replace("--master-addr", _ADDRESS)
    numbers = ", ".join(map(str, args.replicas))
    logger.info("offering replicas %s to the front end at %s", numbers, place)
    configs = replica_configs(resolved.config, args.replicas)
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    with TemporaryDirectory(prefix="quire-", ignore_cleanup_errors=True) as folder:
        for rank, config in zip(args.replicas, configs, strict=True):
            join = own_join(config, rank, args.data_parallel_size)
            lent = Lent(where, key, join, config, Path(folder))
            name = f"replica-{rank}"
            threading.Thread(target=lent.run, args=(ends,), name=name, daemon=True).start()
        for _ in configs:
            if (error := ends.get()) is not None:
                raise error


class Lent:
    """One replica of this machine.

    Args:
        where: address and port of the front end's gate.
        join: offers the replica.
        config: with this replica's CPUs.
        folder: for files of cores.
    """

    def __init__(
        self, where: tuple[str, int], key: bytes, join: Join, config: EngineConfig, folder: Path
    ) -> None:
        self._where, self._key, self._rank, self._config = where, key, join.node, config
        self._join = join
        self._folder = folder
        self._name = f"the front end at {at(where)}"

    def run(self, ends: queue.SimpleQueue[BaseException | None]) -> None:
        """Lend cores, one after the other, until one cannot be, or the front end is stopped."""
        try:
            while True:
                self._lend()
                time.sleep(AGAIN_SECONDS)
                logger.info("offering replica %d again", self._rank)
        except GoodbyeError:
            logger.info("%s was stopped, and so is replica %d", self._name, self._rank)
            ends.put(None)
        except BaseException as error:
            ends.put(error)

    def _lend(self) -> None:
        """Lend one core until it ends or its front end does."""
        beats = self._dial(self._join)
        try:
            welcome = wait_for_reply(beats, JOIN_SECONDS, _RANK)
            beats.settimeout(None)
            config = lent_config(welcome.config, self._config)
            line = self._dial(Attach(welcome.attempt, self._rank, rows=False))
            with line:
                send_frame(line, msgspec.msgpack.encode(Hello(config, time.monotonic())))
                line.settimeout(None)
                logger.info("replica %d runs for %s", self._rank, self._name)
                why = run_core(line, beats, self._config.cpus, str(self._folder))
            logger.warning("the core of replica %d %s", self._rank, why)
        except GoodbyeError:
            raise
        except (OSError, HandshakeError) as error:
            logger.warning("%s has ended: %s", self._name, error)
        finally:
            with_shutdown(beats)

    def _dial(self, message: Join | Attach) -> socket.socket:
        deadline = time.monotonic() + JOIN_SECONDS
        return dial_node(self._where, self._key, message, deadline, self._name, flag=_ADDRESS)
