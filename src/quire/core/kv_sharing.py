"""Configuration of KV blocks that other engines read, or hear of."""

from __future__ import annotations

from typing import Literal

from quire.system.records import dataclass

KVRole = Literal["kv_producer", "kv_consumer", "kv_both"]
LoadFailurePolicy = Literal["recompute", "fail"]


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Hands the KV blocks of prompts from one engine to another.

    Attributes:
        role: a producer computes prompts, a consumer answers them.
        engine_id: this engine's name in answers.
        policy: what to do with a request whose promised blocks cannot be loaded.
        address: where a producer serves its blocks, and where a consumer asks for them; None if
            they share the folder.
        prefill_replicas: the first replicas of this engine, which compute prompts for the others;
            0 if all are alike.
        shares_memory: these replicas lend their blocks to the others (see `SharedKV`).
    """

    role: KVRole
    engine_id: str
    policy: LoadFailurePolicy = "recompute"
    address: tuple[str, int] | None = None
    prefill_replicas: int = 0
    shares_memory: bool = False

    @property
    def produces(self) -> bool:
        return self.role != "kv_consumer"


@dataclass(frozen=True, slots=True)
class SharedKV:
    """One file in memory with the KV caches of all replicas, which map it.

    Attributes:
        path: of the file.
        stride: block numbers per replica; it has at most so many blocks.
        replica: this one's number. Its blocks begin at `first`.
        count: number of replicas.
    """

    path: str
    stride: int
    replica: int
    count: int

    @property
    def first(self) -> int:
        return self.replica * self.stride


@dataclass(frozen=True, slots=True)
class KVEventsConfig:
    """Where the changes of the prefix cache are published; see `engine.kv_events`.

    Attributes:
        endpoint, replay_endpoint: ZMQ's; the second answers consumers that have missed batches.
        topic: first frame of each message.
        buffer_steps: most batches that can be replayed.
        hwm: most messages that wait for one slow consumer.
        max_queue_size: most batches that wait for the publisher's thread.
        rank: the replica's number.
    """

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    rank: int = 0
