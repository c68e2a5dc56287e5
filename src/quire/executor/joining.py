"""What the machines of an engine agree on before they compute together.

node n → node 0    Join; Welcome, or Refused and the end
node n → node 0    for each of its workers an Attach; then that worker's frames (`frames`)
node n → node n-1  for each worker of its first stage an Attach; then rows (`parallel.stage`)
"""

from __future__ import annotations

import dataclasses
import logging
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from quire import __version__
from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.models.weights.digest import model_digest
from quire.parallel.handshake import HandshakeError, Reminder, receive_frame, send_frame
from quire.parallel.heartbeat import GoodbyeError
from quire.system import env

logger = logging.getLogger(__name__)

LEAST_KEY = 16
"""Characters of the shortest key."""
LOCAL = {
    "model_path", "tokenizer_path", "memory_budget_bytes", "num_threads", "pack_cache_bytes",
    "profiler", "draft", "first_gpu",
}  # fmt: skip
"""Fields of `EngineConfig` that each machine decides for itself."""
_DERIVED = {
    "stage_layers", "step_timeout", "marks_path", "cluster", "scheduler", "model", "cpus",
    "report_cache", "kv_events", "prefix_caching_hash_seed",
}  # fmt: skip
"""Fields that node 0 decides, or that follow from others."""


class Join(msgspec.Struct, tag=True, array_like=True):
    """A machine offers its workers.

    Attributes:
        model: see `model_digest`.
        agent: random name of its process: two machines may claim the same rank.
        replicas: of all machines together.
    """

    version: str
    node: int
    config: EngineConfig
    model: str
    agent: str
    replicas: int = 1


class _Joins(msgspec.Struct, tag="Join", array_like=True):
    """What a `Join` of any version begins with."""

    version: str


class Attach(msgspec.Struct, tag=True, array_like=True):
    """The connection is a worker's: its line to the executor, or its way from the stage before."""

    attempt: str
    worker: int
    rows: bool


class Welcome(msgspec.Struct, tag=True, array_like=True):
    """All machines are there; `before` is where the one before listens for `Attach`, None for node
    0, which the machine has found."""

    attempt: str
    before: tuple[str, int] | None
    config: EngineConfig


class Refused(msgspec.Struct, tag=True, array_like=True):
    """The machine cannot belong to this engine; says why, by name."""

    why: str


encode = msgspec.msgpack.Encoder().encode
_joins = msgspec.msgpack.Decoder(_Joins)
_offers = msgspec.msgpack.Decoder(Join | Attach)
_replies = msgspec.msgpack.Decoder(Welcome | Refused | None)


def offer_of(frame: bytes) -> Join | Attach:
    """Return what a machine sent; raise `HandshakeError` if it is no message of this version."""
    try:
        offer: Join | Attach = _offers.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, MemoryError) as error:
        why = f"it sent no valid message: {error}"
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, MemoryError):
            why = _other_version("it", _joins.decode(frame).version, __version__) or why
        raise HandshakeError(why) from None
    return offer


def reply_of(frame: bytes) -> Welcome | Refused | None:
    """Return node 0's reply, None for a goodbye; raise `HandshakeError` if it is no reply."""
    try:
        reply: Welcome | Refused | None = _replies.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, MemoryError) as error:
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
    return os.fsencode(key)


def own_join(config: EngineConfig, node: int, replicas: int = 1) -> Join:
    """Return what a machine says of itself."""
    return Join(__version__, node, config, model_digest(config), os.urandom(8).hex(), replicas)


def refusal(own: Join, other: Join) -> str | None:
    """Return why a machine cannot belong to the engine; None if it can."""
    nodes = own.config.cluster.nnodes
    if other.config.cluster.nnodes != nodes:
        return f"node {other.node} has nnodes {other.config.cluster.nnodes}, and node 0 has {nodes}"
    if not 0 < other.node < nodes:
        return f"node_rank is {other.node}; with nnodes {nodes} it is at most {nodes - 1}"
    return difference(own, other, f"node {other.node}")


def refuse(connection: socket.socket, host: str, why: str) -> None:
    """Tell a machine why it cannot belong to the engine, and the log."""
    logger.warning("refused a machine at %s: %s", host, why)
    with connection, suppress(OSError):  # it is gone
        send_frame(connection, encode(Refused(why)))


def difference(own: Join, other: Join, machine: str) -> str | None:
    """Return what the other `machine` has that node 0 has not; None if they can compute alike."""
    if (why := _other_version(machine, other.version, own.version)) is not None:
        return why
    for name, here, there in _compared(own, other):
        if here != there:
            return f"{machine} has {name} {there}, and node 0 has {here}"
    if other.config.model != own.config.model or other.model != own.model:
        return f"{machine} has another model: config.json or weights differ from node 0's"
    return None


def _other_version(machine: str, there: str, here: str) -> str | None:
    return None if there == here else f"{machine} has Quire {there}, and node 0 has {here}"


def _compared(ours: Join, theirs: Join) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field that must be the same, from both."""
    yield "data_parallel_size", ours.replicas, theirs.replicas
    own, other = ours.config, theirs.config
    yield "pipeline_parallel_size", own.pipeline_parallel_size, other.pipeline_parallel_size
    for field in dataclasses.fields(EngineConfig):
        if field.name not in LOCAL | _DERIVED:
            yield field.name, getattr(own, field.name), getattr(other, field.name)
    for field in dataclasses.fields(own.scheduler):
        # The first may be what fits into the memory; `LLM` and `serve` have another second.
        if (name := field.name) not in {"max_model_len", "max_itl_stretch"}:
            yield name, getattr(own.scheduler, name), getattr(other.scheduler, name)


def wait_for_reply(connection: socket.socket, seconds: float, flag: str = "--node-rank") -> Welcome:
    """Return node 0's reply to a `Join`, which comes once all machines have joined.

    Args:
        flag: distinguishes the machines.

    Raises:
        ConfigError: it refuses this machine.
        GoodbyeError: it was stopped.
        OSError: it ended, or did not reply in time.
    """
    end, reminder = time.monotonic() + seconds, Reminder()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(200) and time.monotonic() < end:
        if reminder.is_due():
            logger.warning("waiting for node 0, which waits for other machines; its log names them")
    try:
        reply = reply_of(receive_frame(connection, end))
    except HandshakeError as error:
        raise ConnectionError(str(error)) from None
    if reply is None:
        raise GoodbyeError("it was stopped")
    if isinstance(reply, Refused):
        raise ConfigError(
            f"Node 0 refuses this machine: {reply.why}.",
            fix="Start all machines with the same Quire, model, flags and key, and each with its "
            f"own {flag}.",
            param=flag.lstrip("-").replace("-", "_"),
        )
    return reply
