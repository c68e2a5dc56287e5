"""A router's view of KV events: a copy of the prefix cache, from messages and replays."""

from __future__ import annotations

import msgspec
import zmq

from quire.core.kv_sharing import KVEventsConfig
from quire.engine.kv_events import END, BlockRemoved, BlockStored, KVEventBatch, of_rank

SECONDS = 60


class Consumer:
    """Rebuilds a prefix cache from messages; asks for what it has missed."""

    def __init__(self, config: KVEventsConfig) -> None:
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.subscribe(config.topic)
        self.sub.connect(of_rank(config.endpoint, config.rank))
        self.replay = self.context.socket(zmq.DEALER)
        assert config.replay_endpoint
        self.replay.connect(of_rank(config.replay_endpoint, config.rank))
        self.blocks: dict[int, tuple[int | None, list[int]]] = {}
        self.next = 0
        self.ranks: set[int | None] = set()

    def close(self) -> None:
        self.context.destroy(linger=0)

    def take(self, number: bytes, payload: bytes) -> None:
        batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
        assert int.from_bytes(number, "big") == self.next
        self.next += 1
        self.ranks.add(batch.data_parallel_rank)
        for event in batch.events:
            match event:
                case BlockStored(hashes, parent, tokens, size):
                    assert parent is None or parent in self.blocks
                    for index, block in enumerate(hashes):
                        self.blocks[block] = parent, tokens[index * size : (index + 1) * size]
                        parent = block
                case BlockRemoved(hashes):
                    for block in hashes:
                        self.blocks.pop(block, None)
                case _:
                    self.blocks.clear()

    def ask(self, start: int) -> list[list[bytes]]:
        """Return the replayed batches from number `start` on."""
        self.replay.send_multipart([b"", start.to_bytes(8, "big")])
        found = []
        while self.replay.poll(SECONDS * 1000):
            _, _, number, payload = self.replay.recv_multipart()
            if number == END:
                return found
            found.append([number, payload])
        raise AssertionError("the publisher does not answer")

    def catch_up(self) -> int:
        """Take the batches that a replay has; return the next one's number."""
        for number, payload in self.ask(self.next):
            self.take(number, payload)
        return self.next
