"""Publishes on ZMQ which KV blocks enter and leave the prefix cache, in vLLM's format.

A message has three frames: the topic, the batch's number (8 bytes, big-endian), and the batch in
msgpack. Hashes are the last 64 bits of Quire's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.core.errors import ConfigError
from quire.core.kv_sharing import KVEventsConfig
from quire.core.messages import BlockChanges
from quire.kv.runs import BlockRun

logger = logging.getLogger(__name__)

MEDIUM = "GPU"
"""vLLM's name of the cache that the model reads, on CPUs too."""
REPLAY_BYTES = 64 << 20
"""Most bytes of batches that can be replayed."""
END = (-1).to_bytes(8, "big", signed=True)
"""The number behind the last replayed batch."""


class _Event(msgspec.Struct, array_like=True, tag=True):
    """One change; the class's name is its first element."""


class BlockStored(_Event):
    """Consecutive blocks entered the prefix cache."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    """Per block: what its hash covers besides tokens and the block before."""


class BlockRemoved(_Event):
    """Blocks left the prefix cache."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(_Event):
    """The prefix cache is empty."""


class KVEventBatch(msgspec.Struct, array_like=True):
    """The changes of one step."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class KVEventPublisher:
    """Sends batches in a thread of its own; no step waits for a consumer.

    Batch 0 says that the cache is empty, so a consumer forgets what an earlier process sent. If
    more than `max_queue_size` batches wait, they are dropped and the consumers are told that the
    cache is empty: they then know less than is cached, and never more.

    Raises:
        ConfigError: an endpoint is in use or wrong.
    """

    def __init__(self, config: KVEventsConfig, block_size: int) -> None:
        import zmq

        self._config = config
        self._block_size = block_size
        self._context = zmq.Context()
        self._sockets: list[Any] = []
        self._pub = self._socket(zmq.PUB, config.endpoint, config.hwm)
        self._replay = None
        if config.replay_endpoint is not None:
            limit = config.buffer_steps + 1  # one whole answer may wait for a consumer
            self._replay = self._socket(zmq.ROUTER, config.replay_endpoint, limit, always_bind=True)
        self._waiting: deque[tuple[BlockChanges, Sequence[BlockRun]]] = deque()
        self._sent: deque[tuple[bytes, bytes]] = deque()
        self._sent_bytes = self._next = 0
        self._wake = os.eventfd(0)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self.put(BlockChanges([], [], emptied=True), [])
        self._thread.start()

    def _socket(self, kind: int, endpoint: str, limit: int, *, always_bind: bool = False) -> Any:
        import zmq

        socket = self._context.socket(kind)
        socket.set(zmq.SNDHWM, limit)
        socket.set(zmq.LINGER, 100)
        self._sockets.append(socket)
        endpoint = of_rank(endpoint, self._config.rank)
        listens = always_bind or endpoint.startswith(("ipc:", "inproc:"))
        try:
            if listens or "*" in endpoint or "::" in endpoint:
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._destroy()
            raise ConfigError(
                f"KV events: cannot use {endpoint}: {error.strerror}.",
                fix="Set another endpoint in --kv-events-config.",
                param="kv_events_config",
            ) from None
        return socket

    def put(self, changes: BlockChanges | None, runs: Sequence[BlockRun]) -> None:
        """Queue the changes of a step; None if there are none.

        Args:
            runs: the blocks that entered, and others.
        """
        if changes is None:
            return
        if len(self._waiting) >= self._config.max_queue_size:
            self._waiting.clear()
            self._waiting.append((BlockChanges([], [], emptied=True), []))
            logger.warning("KV events: the queue is full; consumers forget all blocks")
        self._waiting.append((changes, runs))
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Send what waits, and end the thread."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._destroy()
        os.close(self._wake)

    def _destroy(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._context.term()

    def _run(self) -> None:
        import zmq

        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        while not self._closing:
            ready = dict(poller.poll())
            if self._wake in ready:
                os.eventfd_read(self._wake)
                self._send_waiting()
            if self._replay in ready:
                self._answer(self._replay)
        self._send_waiting()

    def _send_waiting(self) -> None:
        while True:
            try:
                changes, runs = self._waiting.popleft()
            except IndexError:  # `put` may clear the queue at any time
                return
            events = events_of(changes, runs, self._block_size)
            batch = KVEventBatch(time.time(), events, self._config.rank)
            number, payload = self._next.to_bytes(8, "big"), msgspec.msgpack.encode(batch)
            self._next += 1
            self._keep(number, payload)
            self._pub.send_multipart((self._config.topic.encode(), number, payload))

    def _keep(self, number: bytes, payload: bytes) -> None:
        """Store a batch for replays; drop the oldest beyond the limits."""
        if self._replay is None:
            return
        self._sent.append((number, payload))
        self._sent_bytes += len(payload)
        while len(self._sent) > self._config.buffer_steps or self._sent_bytes > REPLAY_BYTES:
            self._sent_bytes -= len(self._sent.popleft()[1])

    def _answer(self, replay: Any) -> None:
        """Send the batches from the requested number on, and the end mark."""
        *client, start = replay.recv_multipart()
        if len(client) != 2 or len(start) != 8:
            logger.warning("KV events: a replay was requested with a frame of %d bytes", len(start))
            return
        topic = self._config.topic.encode()
        for number, payload in self._sent:
            if number >= start:  # big-endian numbers are ordered as their bytes are
                replay.send_multipart((*client, topic, number, payload))
        replay.send_multipart((*client, b"", END, b""))


def of_rank(endpoint: str, rank: int) -> str:
    """Return a replica's endpoint: the port grows with its number, a name gets a suffix."""
    if not rank:
        return endpoint
    if not endpoint.startswith("tcp:"):
        return f"{endpoint}_dp{rank}"
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + rank}"


def events_of(
    changes: BlockChanges, runs: Sequence[BlockRun], block_size: int
) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
    """Return a step's changes as events: what entered has parents that entered before."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
    if changes.emptied:
        events.append(AllBlocksCleared())
    entered = set(changes.entered)
    for run in runs:
        start = 0
        for index in range(len(run.hashes) + 1):
            if index < len(run.hashes) and run.hashes[index] in entered:
                entered.remove(run.hashes[index])
                continue
            if index > start:
                events.append(_stored(run, start, index, block_size))
            start = index + 1
    if changes.left:
        events.append(BlockRemoved([short_hash(name) for name in changes.left], MEDIUM))
    return events


def _stored(run: BlockRun, start: int, end: int, block_size: int) -> BlockStored:
    before = run.hashes[start - 1] if start else run.before
    adapter = run.inputs.options.lora_request
    return BlockStored(
        [short_hash(name) for name in run.hashes[start:end]],
        None if before is None else short_hash(before),
        _tokens(run.token_ids[start * block_size : end * block_size]),
        block_size,
        adapter.lora_int_id if adapter else None,
        MEDIUM,
        adapter.lora_name if adapter else None,
        _extra_keys(run, range(run.first + start, run.first + end), block_size),
    )


def _tokens(token_ids: array[int]) -> list[int]:
    return [max(token, 0) for token in token_ids]  # vLLM's are unsigned; embeddings have none


def _extra_keys(run: BlockRun, blocks: range, block_size: int) -> list[list[str] | None] | None:
    """Return what each block's hash covers besides tokens; None if no block has any."""
    keys = [_keys(run, block, block_size) or None for block in blocks]
    return keys if any(keys) else None


def _keys(run: BlockRun, block: int, block_size: int) -> list[str]:
    options, start, end = run.inputs.options, block * block_size, (block + 1) * block_size
    adapter, salt = options.lora_request, options.cache_salt
    keys = [adapter.lora_name] if adapter else []
    keys += [
        span.digest.hex()
        for span in run.inputs.images
        if (span.start < end and span.end > start) or (span.whole and not block)
    ]
    keys += [salt] if salt and not block else []
    if run.inputs.prompt_embeds is not None:
        keys.append(run.hashes[block - run.first].hex())
    return keys


def short_hash(block_hash: bytes) -> int:
    """Return a block's name in events."""
    return int.from_bytes(block_hash[-8:], "big")
