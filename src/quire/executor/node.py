"""A machine of an engine beside node 0: it lends its workers, again and again.

When a worker ends, or the connection to node 0 does, all workers here end. Then the machine joins
the engine's next core, unless node 0 has said goodbye.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

from quire.core.config import EngineConfig
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
from quire.parallel.handshake import Doorman, HandshakeError, Reminder, at, dial, reachable
from quire.parallel.heartbeat import GoodbyeError, check_peer, wait_for_loss
from quire.parallel.shared_memory import anonymous_file

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 0.1
LOOK_SECONDS = 0.2
"""How often a machine that waits for the next one looks whether node 0 is still there."""


def lend_workers(config: EngineConfig, node: int) -> None:
    """Lend this machine's workers to node 0's engine until that is stopped.

    Raises:
        ConfigError: node 0 refuses this machine, or has another key.
        EngineDeadError: nobody is there for `JOIN_SECONDS`.
    """
    machine = Machine(config, node, cluster_key())
    while machine.lend():
        logger.info("joining again")
        time.sleep(AGAIN_SECONDS)


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
        self._master = config.cluster.master_addr, config.cluster.master_port
        self._name = f"node 0 at {at(self._master)}"

    def lend(self) -> bool:
        """Join one core, and compute until it ends; return whether another may follow."""
        deadline = time.monotonic() + JOIN_SECONDS
        logger.info("waiting for node 0 at %s", reachable(self._master))
        connection = self._dial(self._master, self._join, deadline)
        try:
            welcome = wait_for_reply(connection, JOIN_SECONDS)
            self._work(connection, welcome, deadline)
        except GoodbyeError:
            logger.info("%s was stopped, and so is this machine", self._name)
            return False
        except (OSError, HandshakeError) as error:
            logger.warning("%s has ended: %s", self._name, error)
        finally:
            with_shutdown(connection)
        return True

    def _dial(
        self,
        where: tuple[str, int],
        message: Join | Attach,
        deadline: float,
        check: Callable[[], None] = lambda: None,
    ) -> socket.socket:
        number = 0 if where == self._master else self._join.node - 1
        name, waited = (f"node {number} at {place}" for place in (at(where), reachable(where)))
        return dial_node(where, self._key, message, deadline, name, check, waited)

    def _work(self, connection: socket.socket, welcome: Welcome, deadline: float) -> None:
        """Start the workers; return when one of them or the connection has ended."""
        woken, wake = os.pipe()
        crew = Crew(self._grid, lambda _: _write(wake))
        memory = anonymous_file(shared_bytes(welcome.config))
        try:
            self._start(crew, memory, connection, welcome, deadline)
            logger.info("workers of node %d that run: %d", self._join.node, len(self._workers))
            loss = wait_for_loss({connection: self._name}, woken={woken: "a worker here"})
        finally:
            crew.close(patience=0.0)
            for descriptor in (memory, woken, wake):
                os.close(descriptor)
        if loss.is_final:
            raise GoodbyeError("it was stopped")
        logger.warning("%s %s", *loss)

    def _start(
        self, crew: Crew, memory: int, node_0: socket.socket, welcome: Welcome, deadline: float
    ) -> None:
        """Connect each worker and start its process; no end stays open here."""
        first = self._workers[: self._grid.ranks]
        with ExitStack() as held:

            def attached(worker: int, where: tuple[str, int], *, rows: bool) -> int:
                message = Attach(welcome.attempt, worker, rows)
                connection = self._dial(where, message, deadline, lambda: check_peer(node_0))
                connection.settimeout(None)
                return held.enter_context(connection).fileno()

            lines = {worker: attached(worker, self._master, rows=False) for worker in self._workers}
            where = welcome.before or self._master
            before = {worker: attached(worker, where, rows=True) for worker in first}
            behind: dict[int, int] = {}
            if self._join.node + 1 < self._grid.nodes:
                found = self._rows_behind(held, node_0, welcome, deadline)
                behind = {worker: end.fileno() for worker, end in found.items()}
            before, behind = (
                {worker: os.dup(end) for worker, end in far.items()} for far in (before, behind)
            )
            ends = node_ends(self._grid, memory, self._join.node, before, behind)
            cpus = rank_cpus(len(ends), max(1, self._join.config.num_threads // len(ends)))
            for worker, own, cores in zip(self._workers, ends, cpus, strict=True):
                crew.spawn(worker, os.dup(lines[worker]), own, cores)

    def _rows_behind(
        self, held: ExitStack, node_0: socket.socket, welcome: Welcome, deadline: float
    ) -> dict[int, socket.socket]:
        """Wait for the connections of the next machine's first stage, and hold them.

        Raises:
            OSError: node 0 has ended, or they did not come in time.
        """
        following = self._join.node + 1
        missing = {*self._grid.workers_of(following)[: self._grid.ranks]}
        found: dict[int, socket.socket] = {}
        reminder = Reminder()
        with closing(self._listen(node_0)) as doorman:
            while missing:
                if reminder.is_due():
                    where = at(doorman.address)
                    logger.warning("waiting for node %d at %s. Is it started?", following, where)
                check_peer(node_0)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"node {following} did not connect")
                if (arrival := doorman.next(LOOK_SECONDS)) is None:
                    continue
                message: Join | Attach | None = None
                with suppress(HandshakeError):
                    message = offer_of(arrival.frame)
                if (
                    not isinstance(message, Attach)
                    or message.attempt != welcome.attempt
                    or message.worker not in missing
                ):
                    arrival.connection.close()
                    continue
                missing.remove(message.worker)
                arrival.connection.settimeout(None)
                own = message.worker - self._grid.ranks
                found[own] = held.enter_context(arrival.connection)
        return found

    def _listen(self, node_0: socket.socket) -> Doorman:
        """Listen for the next machine, at the address that node 0 knows."""
        where = node_0.getsockname()[0], self._cluster.master_port + self._join.node
        try:
            return Doorman(*where, self._key)
        except OSError as error:
            raise ConfigError(
                f"Node {self._join.node} cannot listen at {at(where)}: {error}.",
                fix="Set a --master-port so that it and the next ones are free, one for each node.",
                param="master_port",
            ) from None


def dial_node(
    where: tuple[str, int],
    key: bytes,
    message: Join | Attach,
    deadline: float,
    name: str,
    check: Callable[[], None] = lambda: None,
    waited: str | None = None,
    flag: str = "--master-addr",
) -> socket.socket:
    """Return a connection to another node that waits for machines.

    Args:
        name: what errors call the node; `waited` is what the log calls it, default the same.
        flag: the node's address.

    Raises:
        ConfigError: it has another key.
        EngineDeadError: it is not there before the deadline.
    """
    try:
        return dial(where, key, encode(message), deadline, check, waited or name)
    except HandshakeError as error:
        raise ConfigError(
            f"This machine cannot join {name}: {error}.",
            fix="Set the same QUIRE_CLUSTER_KEY and QUIRE_CLUSTER_TLS on all machines, and "
            f"check {flag}.",
            param="QUIRE_CLUSTER_KEY",
        ) from None
    except TimeoutError as error:
        raise EngineDeadError(
            f"{name} did not answer within {JOIN_SECONDS:.0f} s: {error}.",
            fix=f"Start `quire serve` there, and check {flag} and firewalls.",
        ) from None


def _write(wake: int) -> None:
    os.write(wake, b"1")
