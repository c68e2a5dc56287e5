"""What distinguishes the replicas of a fleet: their configurations, and the memory they share."""

from __future__ import annotations

from dataclasses import replace

from quire.core.config import EngineConfig
from quire.core.kv_sharing import SharedKV
from quire.parallel.shared_memory import SharedFile


def shared_memory(config: EngineConfig, count: int) -> SharedFile | None:
    """Return new memory for the KV caches of all replicas; None if they share none."""
    transfer = config.transfer
    return SharedFile() if count > 1 and transfer and transfer.shares_memory else None


def replica_configs(
    config: EngineConfig, numbers: range, memory: SharedFile | None = None, far: range = range(0)
) -> list[EngineConfig]:
    """Return one configuration per replica: its own CPUs, GPUs and number; it reports its prefix
    cache.

    Neighbouring cores, and so mostly one memory node, belong to one replica. If there are fewer
    cores than threads, the system distributes the threads.

    Args:
        config: of one replica; its threads and memory are one's share.
        numbers: of the replicas; events have them.
        memory: of all their KV caches, if they share it.
        far: the last of them, which are on other machines.
    """
    count = len(numbers)
    events, transfer, tiers = config.kv_events, config.transfer, config.tiers
    if count == 1:
        return [replace(config, kv_events=events and replace(events, rank=numbers[0]))]
    from quire.executor.crew import rank_cpus

    prefill = transfer.prefill_replicas if transfer is not None else 0
    consumer = transfer and replace(transfer, role="kv_consumer")
    answers = replace(config, transfer=consumer, tiers=replace(tiers, read_only=True))
    cpus = rank_cpus(count - len(far), config.num_threads) if len(far) < count else []
    shared = _shared_kv(config, memory, count) if memory else None
    return [
        replace(
            answers if prefill and rank >= prefill else config,
            cpus=tuple(own),
            first_gpu=rank * config.tensor_parallel_size,
            shared_kv=shared and replace(shared, replica=rank),
            report_cache=config.enable_prefix_caching,
            kv_events=events and replace(events, rank=numbers[rank]),
        )
        for rank, own in enumerate([*cpus, *([] for _ in far)])
    ]


def _shared_kv(config: EngineConfig, memory: SharedFile, count: int) -> SharedKV:
    from quire.executor.memory import most_kv_blocks
    from quire.models.memory import kv_bytes_of

    return SharedKV(memory.path, most_kv_blocks(config, kv_bytes_of(config)), 0, count)
