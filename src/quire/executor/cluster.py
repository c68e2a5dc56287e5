"""Node 0's connections to the other machines of an engine; see `joining` for what they say.

Nobody listens any more once all of them are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from quire.core.config import ClusterConfig, EngineConfig
from quire.core.errors import ConfigError, EngineDeadError
from quire.executor import joining
from quire.executor.placement import Placement
from quire.models.weights.shares import shared_config, worker_grid
from quire.parallel import handshake
from quire.parallel.heartbeat import has_ended, say_goodbye, wait_for_loss

logger = logging.getLogger(__name__)

JOIN_SECONDS = 300.0
"""How long node 0 waits for the others, and they for it."""


class Cluster:
    """The other machines, as node 0 sees them.

    Raises:
        ConfigError: there is no key.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._placement: Placement | None = None
        if config.cluster.flags:
            self._placement = Placement(config)
        self._key = self._placement.key if self._placement is not None else joining.cluster_key()
        self._grid = worker_grid(config)
        self._joined: dict[int, socket.socket] = {}
        self._closing = False

    def gather(
        self, on_lost: Callable[[int], None]
    ) -> tuple[dict[int, int], dict[int, int], dict[int, EngineConfig]]:
        """Wait until all machines have joined and their workers are connected.

        Args:
            on_lost: called, in a separate thread, when one of the connections ends.

        Returns:
            Descriptors by worker: of rows to node 1, and of lines to other machines' workers; and
            these workers' configurations.

        Raises:
            ConfigError: the address cannot be used.
            EngineDeadError: a machine is missing after `JOIN_SECONDS`; names it.
        """
        placement = self._placement
        where = self._config.cluster if placement is None else placement.start()
        fails = None if placement is None else placement.failure
        gathering = _Gathering(self._config, where, self._key, fails)
        self._joined = gathering.connections
        try:
            joins = gathering.joins()
            rows, lines = gathering.attached()
        finally:
            gathering.close()
        shares = {}
        for node, join in joins.items():
            local = {name: getattr(join.config, name) for name in joining.LOCAL}
            whole = dataclasses.replace(self._config, **local, marks_path=None)  # a file here
            for worker in self._grid.workers_of(node):
                shares[worker] = shared_config(whole, worker)
        nodes = {end: gathering.name(f"node {node}", node) for node, end in self._joined.items()}
        self._watch(on_lost, nodes)
        return rows, lines, shares

    def _watch(self, on_lost: Callable[[int], None], nodes: dict[socket.socket, str]) -> None:
        """Call `on_lost` when a machine is gone, even between two steps; it ends with a worker."""

        def wait() -> None:
            loss = wait_for_loss(nodes)
            if not self._closing:
                logger.error("The connection to %s %s; see its log.", *loss)
                on_lost(1)

        threading.Thread(target=wait, name="nodes", daemon=True).start()

    def retire(self) -> None:
        """Say to the machines that no other core follows, also while they join."""
        self._closing = True
        say_goodbye([*self._joined.values()])

    def close(self) -> None:
        """End the connections. Without `retire` the machines wait for another core."""
        self._closing = True
        for connection in self._joined.values():
            with_shutdown(connection)
        if self._placement is not None:
            self._placement.close()


def with_shutdown(connection: socket.socket) -> None:
    """Close a connection, also for threads that wait for it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class _Gathering:
    """The start of a cluster, until all connections are there.

    Attributes:
        connections: of the machines that have joined.

    Args:
        where: where this machine listens.
        fails: returns why the other machines cannot start, once that is known.
    """

    def __init__(
        self,
        config: EngineConfig,
        where: ClusterConfig,
        key: bytes,
        fails: Callable[[], Exception | None] | None = None,
    ) -> None:
        self._config = config
        self._where = where
        self._fails = fails
        self._own = joining.own_join(config, 0)
        self._grid = worker_grid(config)
        self._attempt = os.urandom(8).hex()
        self._deadline = time.monotonic() + JOIN_SECONDS
        self._reminder = handshake.Reminder()
        address = where.master_addr, where.master_port
        try:
            self._doorman = handshake.Doorman(*address, key)
        except OSError as error:
            raise ConfigError(
                f"Node 0 cannot listen at {handshake.at(address)}: {error}.",
                fix="Set --master-addr to an address of this machine, and --master-port to a free "
                "port.",
                param="master_addr",
            ) from None
        self._place = handshake.reachable(self._doorman.address)
        self.connections: dict[int, socket.socket] = {}
        self._joins: dict[int, joining.Join] = {}
        self._hosts: dict[int, str] = {}

    def name(self, what: str, node: int) -> str:
        """Return what messages call something on a machine that has joined."""
        return f"{what} at {self._hosts[node]}"

    def worker_name(self, worker: int) -> str:
        return self.name(self._grid.name(worker), self._grid.node(worker))

    def joins(self) -> dict[int, joining.Join]:
        """Wait for all machines; answer them."""
        todo = "Start `quire serve` there with the same flags, --headless and --node-rank."
        if self._fails is not None:
            todo = "Ray starts it."
        said = False
        while missing := [node for node in range(1, self._grid.nodes) if not self._is_there(node)]:
            wanted = f"node {', '.join(map(str, missing))} of {self._grid.nodes}"
            if not said:
                logger.info("waiting at %s for %s. %s", self._place, wanted, todo)
                said = True
            message, arrival = self._next(wanted, todo)
            if not isinstance(message, joining.Join):
                arrival.connection.close()
                continue
            if message.node in self.connections:  # it lost the earlier connection
                self.connections[message.node].close()
            logger.info("node %d has joined from %s", message.node, arrival.host)
            self._joins[message.node] = message
            self.connections[message.node], self._hosts[message.node] = arrival[0], arrival.host
        for node, connection in self.connections.items():
            port = self._where.master_port + node - 1
            before = None if node == 1 else (self._hosts[node - 1], port)
            config = dataclasses.replace(self._config, model_path="", tokenizer_path=None)
            connection.settimeout(None)
            with contextlib.suppress(OSError):  # its end is noticed in `attached`
                handshake.send_frame(
                    connection, joining.encode(joining.Welcome(self._attempt, before, config))
                )
        return self._joins

    def _is_there(self, node: int) -> bool:
        return node in self.connections and not has_ended(self.connections[node])

    def _refusal(self, join: joining.Join) -> str | None:
        """Return why a machine cannot have this rank in this engine; None if it can."""
        if (why := joining.refusal(self._own, join)) is not None or not self._is_there(join.node):
            return why
        if self._joins[join.node].agent == join.agent:  # only its connection was lost
            return None
        return f"node {join.node} is there already, from {self._hosts[join.node]}"

    def attached(self) -> tuple[dict[int, int], dict[int, int]]:
        """Wait for the connections of all workers; return descriptors of rows and of lines."""
        far = range(self._grid.workers_of(1)[0], self._grid.size)
        missing = {(worker, False) for worker in far}
        missing |= {(worker, True) for worker in far[: self._grid.ranks]}
        rows: dict[int, int] = {}
        lines: dict[int, int] = {}
        while missing:
            wanted = f"the connections of {self.worker_name(min(missing)[0])}"
            message, arrival = self._next(wanted, "See its log.", self._check_joined)
            if isinstance(message, joining.Join):
                arrival.connection.close()
                raise EngineDeadError(f"Node {message.node} started again meanwhile.")
            end = message.worker, message.rows
            if message.attempt != self._attempt or end not in missing:
                arrival.connection.close()
                continue
            missing.remove(end)
            arrival.connection.settimeout(None)
            known = message.worker - self._grid.ranks if message.rows else message.worker
            (rows if message.rows else lines)[known] = arrival.connection.detach()
        return rows, lines

    def _check_joined(self) -> None:
        """Raise `EngineDeadError` if a machine that has joined is gone."""
        for node, connection in self.connections.items():
            if has_ended(connection):
                raise EngineDeadError(
                    f"{self.name(f'Node {node}', node)} ended before its workers were connected.",
                    fix="See its log.",
                )

    def _next(
        self, wanted: str, todo: str, check: Callable[[], None] = lambda: None
    ) -> tuple[joining.Join | joining.Attach, handshake.Arrival]:
        """Return the next message of a machine that belongs to the engine; refuse others.

        Args:
            wanted: for the log; `todo` is what the user can do.
            check: called now and then; may raise.
        """
        while (now := time.monotonic()) < self._deadline:
            if self._fails is not None and (failure := self._fails()) is not None:
                raise failure
            check()
            if self._reminder.is_due():
                logger.warning("waiting at %s for %s. %s", self._place, wanted, todo)
            arrival = self._doorman.next(min(self._deadline - now, 0.2))
            if arrival is None:
                continue
            try:
                message = joining.offer_of(arrival.frame)
                why = self._refusal(message) if isinstance(message, joining.Join) else None
            except handshake.HandshakeError as error:
                why = str(error)
            if why is None:
                return message, arrival
            joining.refuse(arrival.connection, arrival.host, why)
        raise EngineDeadError(
            f"{wanted} did not connect to {self._place} within {JOIN_SECONDS:.0f} s.",
            fix=f"{todo} Check that it reaches --master-addr.",
        )

    def close(self) -> None:
        self._doorman.close()
