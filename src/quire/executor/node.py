"""A machine of an engine beside node 0: it lends its workers, again and again.

When a worker ends, or the connection to node 0 does, all workers here end. Then the machine joins
the engine's next core.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import ExitStack
from itertools import count

from quire.core.config import ClusterConfig, EngineConfig
from quire.core.errors import ConfigError, EngineDeadError
from quire.executor.cluster import JOIN_SECONDS, with_shutdown
from quire.executor.crew import Crew, node_ends, rank_cpus
from quire.executor.joining import (
    Attach,
    Join,
    Welcome,
    cluster_key,
    encode,
    offer_of,
    own_join,
    wait_for_reply,
)
from quire.executor.peers import shared_bytes
from quire.models.weights.shares import worker_grid
from quire.parallel.handshake import Arrival, Doorman, HandshakeError, dial
from quire.parallel.heartbeat import wait_for_loss
from quire.parallel.shared_memory import anonymous_file

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 0.1


def lend_workers(config: EngineConfig, node: int) -> None:
    """Lend this machine's workers to node 0's engine; returns only with an error.

    Raises:
        ConfigError: node 0 refuses this machine, or has another key.
        EngineDeadError: nobody is there for `JOIN_SECONDS`.
    """
    machine = Machine(config, node, cluster_key())
    for attempt in count():
        if attempt:
            logger.info("joining again")
            time.sleep(AGAIN_SECONDS)
        machine.lend()


class Machine:
    """This machine, as one of an engine's.

    Args:
        key: of all machines of the engine.
    """

    def __init__(self, config: EngineConfig, node: int, key: bytes) -> None:
        self._join = own_join(config, node)
        self._key = key
        self._grid = worker_grid(config)
        self._workers = self._grid.workers_of(node)
        self._cluster = config.cluster
        self._name = f"node 0 at {config.cluster.master_addr}:{config.cluster.master_port}"
        self._doorman: Doorman | None = None
        if node < config.cluster.nnodes - 1:
            port = config.cluster.master_port + node
            self._doorman = Doorman(own_host(config.cluster), port, self._key)

    def lend(self) -> None:
        """Join one core, and compute until it ends."""
        deadline = time.monotonic() + JOIN_SECONDS
        logger.info("waiting for %s", self._name)
        where = self._cluster.master_addr, self._cluster.master_port
        connection = self._dial(where, self._join, deadline)
        try:
            welcome = wait_for_reply(connection, JOIN_SECONDS)
            self._work(connection, welcome, deadline)
        except (OSError, HandshakeError) as error:
            logger.warning("%s has ended: %s", self._name, error)
        finally:
            with_shutdown(connection)

    def _dial(
        self, where: tuple[str, int], message: Join | Attach, deadline: float
    ) -> socket.socket:
        try:
            return dial(where, self._key, encode(message), deadline)
        except HandshakeError as error:
            raise ConfigError(
                f"{error}: it cannot be a machine of this engine.",
                fix="Set the same QUIRE_CLUSTER_KEY on all machines, and check --master-addr.",
                param="QUIRE_CLUSTER_KEY",
            ) from None
        except TimeoutError as error:
            raise EngineDeadError(
                f"{self._name} did not answer within {JOIN_SECONDS:.0f} s: {error}.",
                fix="Start `quire serve` there, and check --master-addr and firewalls.",
            ) from None

    def _work(self, connection: socket.socket, welcome: Welcome, deadline: float) -> None:
        """Start the workers; return when one of them or the connection has ended."""
        woken, wake = os.pipe()
        crew = Crew(self._grid, lambda _: _write(wake))
        memory = anonymous_file(shared_bytes(welcome.config))
        try:
            self._start(crew, memory, welcome, deadline)
            logger.info("the %d workers of node %d run", len(self._workers), self._join.node)
            why = wait_for_loss([connection], woken=[woken])
        finally:
            crew.close(patience=0.0)
            for descriptor in (memory, woken, wake):
                os.close(descriptor)
        logger.warning("%s or a worker here %s", self._name, why)

    def _start(self, crew: Crew, memory: int, welcome: Welcome, deadline: float) -> None:
        """Connect each worker and start its process; no end stays open here."""
        master = self._cluster.master_addr, self._cluster.master_port
        first = self._workers[: self._grid.ranks]
        with ExitStack() as held:

            def attached(worker: int, where: tuple[str, int], *, rows: bool) -> int:
                connection = self._dial(where, Attach(welcome.attempt, worker, rows), deadline)
                connection.settimeout(None)
                return held.enter_context(connection).fileno()

            lines = {worker: attached(worker, master, rows=False) for worker in self._workers}
            before = {
                worker: os.dup(attached(worker, welcome.before or master, rows=True))
                for worker in first
            }
            behind = self._rows_behind(welcome, deadline) if self._doorman else {}
            ends = node_ends(self._grid, memory, self._join.node, before, behind)
            cpus = rank_cpus(len(ends), max(1, self._join.config.num_threads // len(ends)))
            for worker, own, cores in zip(self._workers, ends, cpus, strict=True):
                crew.spawn(worker, os.dup(lines[worker]), own, cores)

    def _rows_behind(self, welcome: Welcome, deadline: float) -> dict[int, int]:
        """Wait for the connections of the next machine's first stage; return descriptors."""
        found: dict[int, int] = {}
        assert self._doorman is not None
        while len(found) < self._grid.ranks:
            arrival = self._doorman.next(deadline - time.monotonic())
            if arrival is None:
                raise TimeoutError(f"node {self._join.node + 1} did not connect")
            if not isinstance(arrival, Arrival):
                logger.warning("%s", arrival)
                continue
            message = offer_of(arrival.frame)
            if not isinstance(message, Attach) or message.attempt != welcome.attempt:
                arrival.connection.close()
                continue
            arrival.connection.settimeout(None)
            found[message.worker - self._grid.ranks] = arrival.connection.detach()
        return found


def _write(wake: int) -> None:
    os.write(wake, b"1")


def own_host(cluster: ClusterConfig) -> str:
    """Return this machine's address in the network of node 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((cluster.master_addr, cluster.master_port))
        host: str = probe.getsockname()[0]
    return host
