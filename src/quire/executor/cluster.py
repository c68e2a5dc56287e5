"""Node 0's connections to the other machines of an engine, and what both sides agree on first.

    node n → node 0    Join; Welcome, or Refused and the end
    node n → node 0    for each of its workers an Attach; then that worker's frames (`frames`)
    node n → node n-1  for each worker of its first stage an Attach; then rows (`parallel.stage`)

Nobody listens any more once all of them are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError, EngineDeadError
from quire.models.weights.digest import model_digest
from quire.models.weights.shares import shared_config, worker_grid
from quire.parallel.handshake import (
    Arrival,
    Doorman,
    HandshakeError,
    receive_frame,
    send_frame,
)
from quire.system import env

logger = logging.getLogger(__name__)

JOIN_SECONDS = 300.0
"""How long node 0 waits for the others, and they for it."""
REMIND_SECONDS = 10.0
LEAST_KEY = 16
"""Characters of the shortest key."""
LOCAL = {
    "model_path", "tokenizer_path", "memory_budget_bytes", "num_threads", "pack_cache_bytes",
    "profiler",
}  # fmt: skip
"""Fields of `EngineConfig` that each machine decides for itself."""
_DERIVED = {"stage_layers", "step_timeout", "marks_path", "cluster", "scheduler", "model"}
"""Fields that node 0 decides, or that follow from others."""


class Join(msgspec.Struct, tag=True, array_like=True):
    """A machine offers its workers.

    Attributes:
        model: see `model_digest`.
    """

    version: str
    node: int
    config: EngineConfig
    model: str


class Attach(msgspec.Struct, tag=True, array_like=True):
    """The connection is a worker's: its line to the executor, or its way from the stage before."""

    attempt: str
    worker: int
    rows: bool


class Welcome(msgspec.Struct, tag=True, array_like=True):
    """All machines are there; `before` is where the one before listens for `Attach`."""

    attempt: str
    before: tuple[str, int]
    config: EngineConfig


class Refused(msgspec.Struct, tag=True, array_like=True):
    """The machine cannot belong to this engine; says why, by name."""

    why: str


encode = msgspec.msgpack.Encoder().encode
_offers = msgspec.msgpack.Decoder(Join | Attach)
_replies = msgspec.msgpack.Decoder(Welcome | Refused)


def offer_of(frame: bytes) -> Join | Attach:
    """Return what a machine sent; raise `HandshakeError` if it is no message."""
    try:
        offer: Join | Attach = _offers.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HandshakeError(f"it sent no valid message: {error}") from None
    return offer


def reply_of(frame: bytes) -> Welcome | Refused:
    """Return node 0's reply; raise `HandshakeError` if it is none."""
    try:
        reply: Welcome | Refused = _replies.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HandshakeError(f"it sent no valid message: {error}") from None
    return reply


def cluster_key() -> bytes:
    """Return the key of all machines of an engine.

    Raises:
        ConfigError: there is none, or it is short.
    """
    key = env.cluster_key()
    if key is None or len(key) < LEAST_KEY:
        what = "is not set" if key is None else f"has {len(key)} characters"
        raise ConfigError(
            f"QUIRE_CLUSTER_KEY {what}; the machines of an engine prove to each other that they "
            f"know it.",
            fix=f"Set it to the same {LEAST_KEY} or more random characters on all of them, such "
            "as the output of `openssl rand -hex 32`.",
            param="QUIRE_CLUSTER_KEY",
        )
    return key.encode()


def own_join(config: EngineConfig, node: int) -> Join:
    """Return what a machine says of itself."""
    from quire import __version__

    return Join(__version__, node, config, model_digest(config))


def refusal(own: Join, other: Join) -> str | None:
    """Return why a machine cannot belong to the engine; None if it can."""
    if other.version != own.version:
        return f"node {other.node} has Quire {other.version}, and node 0 has {own.version}"
    nodes = own.config.cluster.nnodes
    if other.config.cluster.nnodes != nodes:
        return f"node {other.node} has nnodes {other.config.cluster.nnodes}, and node 0 has {nodes}"
    if not 0 < other.node < nodes:
        return f"node_rank is {other.node}; with nnodes {nodes} it is at most {nodes - 1}"
    for name, here, there in _compared(own.config, other.config):
        if here != there:
            return f"node {other.node} has {name} {there}, and node 0 has {here}"
    if other.config.model != own.config.model or other.model != own.model:
        return f"node {other.node} has another model: config.json or weights differ from node 0's"
    return None


def _compared(own: EngineConfig, other: EngineConfig) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field that must be the same, from both."""
    for field in dataclasses.fields(EngineConfig):
        if field.name not in LOCAL | _DERIVED:
            yield field.name, getattr(own, field.name), getattr(other, field.name)
    for field in dataclasses.fields(own.scheduler):
        if field.name != "max_model_len":  # it may be what fits into the memory
            name = field.name
            yield name, getattr(own.scheduler, name), getattr(other.scheduler, name)


class Cluster:
    """The other machines, as node 0 sees them.

    Raises:
        ConfigError: there is no key.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._key = cluster_key()
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
        gathering = _Gathering(self._config, self._key)
        try:
            joins = gathering.joins()
            rows, lines = gathering.attached()
        finally:
            self._joined = gathering.connections
            gathering.close()
        shares = {}
        for node, join in joins.items():
            local = {name: getattr(join.config, name) for name in LOCAL}
            whole = dataclasses.replace(self._config, **local)
            for worker in self._grid.workers_of(node):
                shares[worker] = shared_config(whole, worker)
        self._watch(on_lost, [*self._joined.values()], list(lines.values()))
        return rows, lines, shares

    def _watch(
        self, on_lost: Callable[[int], None], nodes: list[socket.socket], lines: list[int]
    ) -> None:
        """Call `on_lost` when the other end of a connection is gone, even between two steps."""
        poll = select.poll()
        own = [*map(os.dup, lines)]  # `lines` may be closed while this thread waits
        for descriptor in (*(node.fileno() for node in nodes), *own):
            poll.register(descriptor, select.POLLRDHUP)

        def wait() -> None:
            poll.poll()
            for descriptor in own:
                os.close(descriptor)
            if not self._closing:
                logger.error("A connection to another machine of the engine has ended.")
                on_lost(1)

        threading.Thread(target=wait, name="nodes", daemon=True).start()

    def close(self) -> None:
        """End the connections; the machines join again if another core starts."""
        self._closing = True
        for connection in self._joined.values():
            with_shutdown(connection)


def with_shutdown(connection: socket.socket) -> None:
    """Close a connection, also for threads that wait for it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


class _Gathering:
    """The start of a cluster, until all connections are there.

    Attributes:
        connections: of the machines that have joined.
    """

    def __init__(self, config: EngineConfig, key: bytes) -> None:
        self._config = config
        self._own = own_join(config, 0)
        self._grid = worker_grid(config)
        self._attempt = os.urandom(8).hex()
        self._deadline = time.monotonic() + JOIN_SECONDS
        where = config.cluster
        try:
            self._doorman = Doorman(where.master_addr, where.master_port, key)
        except OSError as error:
            raise ConfigError(
                f"Node 0 cannot listen at {where.master_addr}:{where.master_port}: {error}.",
                fix="Set --master-addr to an address of this machine, and --master-port to a free "
                "port.",
                param="master_addr",
            ) from None
        self.connections: dict[int, socket.socket] = {}
        self._hosts: dict[int, str] = {}

    def joins(self) -> dict[int, Join]:
        """Wait for all machines; answer them."""
        found: dict[int, Join] = {}
        while missing := [n for n in range(1, self._grid.nodes) if n not in found]:
            message, arrival = self._next(
                f"node {', '.join(map(str, missing))} of {self._grid.nodes}"
            )
            if not isinstance(message, Join):
                arrival.connection.close()
                continue
            why = refusal(self._own, message)
            if why is not None:
                logger.warning("refused a machine at %s: %s", arrival.host, why)
                send_frame(arrival.connection, encode(Refused(why)))
                arrival.connection.close()
                continue
            if message.node in self.connections:  # it lost the earlier connection
                self.connections[message.node].close()
            logger.info("node %d has joined from %s", message.node, arrival.host)
            found[message.node] = message
            self.connections[message.node], self._hosts[message.node] = arrival[0], arrival.host
        where = self._config.cluster
        for node, connection in self.connections.items():
            host = where.master_addr if node == 1 else self._hosts[node - 1]
            before = host, where.master_port + node - 1
            config = dataclasses.replace(self._config, model_path="", tokenizer_path=None)
            connection.settimeout(None)
            send_frame(connection, encode(Welcome(self._attempt, before, config)))
        return found

    def attached(self) -> tuple[dict[int, int], dict[int, int]]:
        """Wait for the connections of all workers; return descriptors of rows and of lines."""
        far = range(self._grid.workers_of(1)[0], self._grid.size)
        rows: dict[int, int] = {}
        lines: dict[int, int] = {}
        while len(lines) < len(far) or len(rows) < self._grid.ranks:
            missing = next((w for w in far if w not in lines), far[0])
            message, arrival = self._next(f"the connections of {self._grid.name(missing)}")
            if not isinstance(message, Attach) or message.attempt != self._attempt:
                arrival.connection.close()
                if isinstance(message, Join):
                    raise EngineDeadError(f"Node {message.node} started again meanwhile.")
                continue
            arrival.connection.settimeout(None)
            known = message.worker - self._grid.ranks if message.rows else message.worker
            (rows if message.rows else lines)[known] = arrival.connection.detach()
        return rows, lines

    def _next(self, wanted: str) -> tuple[Join | Attach, Arrival]:
        """Return the next message of a machine with the key; `wanted` is for the log."""
        while (left := self._deadline - time.monotonic()) > 0:
            arrival = self._doorman.next(min(left, REMIND_SECONDS))
            if arrival is None:
                host, port = self._doorman.address
                logger.warning("waiting at %s:%d for %s", host, port, wanted)
            elif isinstance(arrival, HandshakeError):
                logger.warning("%s", arrival)
            else:
                try:
                    message = offer_of(arrival.frame)
                except HandshakeError as error:
                    logger.warning("closed a connection from %s: %s", arrival.host, error)
                    arrival.connection.close()
                else:
                    return message, arrival
        raise EngineDeadError(
            f"{wanted} did not connect within {JOIN_SECONDS:.0f} s.",
            fix="Start `quire serve --headless` with the same flags and its --node-rank there; "
            "check that it reaches --master-addr.",
        )

    def close(self) -> None:
        self._doorman.close()


def wait_for_reply(connection: socket.socket, seconds: float) -> Welcome:
    """Return node 0's reply to a `Join`.

    Raises:
        ConfigError: it refuses this machine.
        OSError: it ended, or did not reply in time.
    """
    connection.settimeout(seconds)
    try:
        reply = reply_of(receive_frame(connection))
    except HandshakeError as error:
        raise ConnectionError(str(error)) from None
    if isinstance(reply, Refused):
        raise ConfigError(
            f"Node 0 refuses this machine: {reply.why}.",
            fix="Start all machines with the same Quire, model, flags and key.",
            param="node_rank",
        )
    return reply
