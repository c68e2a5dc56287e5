"""One engine core of a fleet: its supervisor, the calls to it, and its watchdog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from quire.core.config import EngineConfig, SharedKV
from quire.core.errors import QuireError
from quire.core.messages import Call, CallResult, CoreInput, Ready, StepOutputs
from quire.frontend.client.calls import CoreCalls
from quire.frontend.client.interface import CoreClient
from quire.frontend.client.standby import Standby
from quire.frontend.client.supervisor import CoreState, Supervisor
from quire.frontend.client.watchdog import TICKS, Watchdog
from quire.parallel.shared_memory import SharedFile


class ReplicaUser(Protocol):
    """The sender of requests; `replica` is a replica's number."""

    def on_lost(self, replica: int, error: QuireError) -> None:
        """Move or fail all requests of a lost core; another one will start."""

    def on_restored(self, replica: int, ready: Ready) -> None:
        """Another core is ready and has no requests yet."""

    def on_dead(self, replica: int, error: QuireError) -> None:
        """Fail all requests of a lost core that will not be replaced."""

    def has_work(self, replica: int) -> bool:
        """Return whether a replica has requests."""


class Replica:
    """See above.

    Attributes:
        core: keeps an engine core running.
        calls: those to the running core.
    """

    def __init__(
        self,
        number: int,
        standby: Standby,
        config: EngineConfig,
        user: ReplicaUser,
        on_message: Callable[[int, StepOutputs | CallResult], None],
        first: CoreClient | None = None,
    ) -> None:
        self.number = number
        self.core = Supervisor(standby, config, partial(on_message, number), self, first)
        self.calls = CoreCalls(self._send_call)
        self._user = user
        self._watchdog: Watchdog | None = None

    @property
    def is_ready(self) -> bool:
        return self.core.state is CoreState.READY

    def send(self, message: CoreInput) -> None:
        """Send without waiting; raises as `CoreClient.send`."""
        self.core.client.send(message)

    def watch(self, seconds: float) -> None:
        """Replace the core from now on if it is silent for `seconds` while it has work."""
        self._watchdog = Watchdog(
            seconds,
            busy=lambda: self.is_ready and bool(self.calls or self._user.has_work(self.number)),
            stuck=lambda: self.core.end_stuck(seconds),
            hung=lambda: self.core.client.suspects.hung(TICKS),
        )

    def wake_watchdog(self) -> None:
        """Start the watchdog's timer, which runs while there is work."""
        if self._watchdog is not None:
            self._watchdog.start()

    def shutdown(self) -> None:
        self.core.shutdown()
        if self._watchdog is not None:
            self._watchdog.stop()

    def _send_call(self, call: Call) -> None:
        if self.core.error is not None:
            raise self.core.error
        self.send(call)
        self.wake_watchdog()

    def read(self, message: StepOutputs | CallResult) -> StepOutputs | None:
        """Return a step's outputs; None for the result of a call, which its caller gets."""
        if self._watchdog is not None:
            self._watchdog.silent = 0
        if isinstance(message, StepOutputs):
            return message
        self.calls.answer(message)
        return None

    def on_lost(self, error: QuireError) -> None:
        """See `CoreUser`."""
        self.calls.fail(error)
        self._user.on_lost(self.number, error)

    def on_restored(self, ready: Ready) -> None:
        """See `CoreUser`."""
        self._user.on_restored(self.number, ready)

    def on_dead(self, error: QuireError) -> None:
        """See `CoreUser`."""
        self.calls.fail(error)
        self._user.on_dead(self.number, error)


def shared_memory(config: EngineConfig, count: int) -> SharedFile | None:
    """Return new memory for the KV caches of all replicas; None if they share none."""
    transfer = config.transfer
    return SharedFile() if count > 1 and transfer and transfer.shares_memory else None


def replica_configs(
    config: EngineConfig, numbers: range, memory: SharedFile | None = None
) -> list[EngineConfig]:
    """Return one configuration per replica: its own CPUs, GPUs and number; it reports its prefix
    cache.

    Neighbouring cores, and so mostly one memory node, belong to one replica. If there are fewer
    cores than threads, the system distributes the threads.

    Args:
        config: of one replica; its threads and memory are one's share.
        numbers: of the replicas; events have them.
        memory: of all their KV caches, if they share it.
    """
    count = len(numbers)
    events, transfer, tiers = config.kv_events, config.transfer, config.tiers
    if count == 1:
        return [replace(config, kv_events=events and replace(events, rank=numbers[0]))]
    from quire.executor.crew import rank_cpus

    prefill = transfer.prefill_replicas if transfer is not None else 0
    consumer = transfer and replace(transfer, role="kv_consumer")
    answers = replace(config, transfer=consumer, tiers=replace(tiers, read_only=True))
    shared = _shared_kv(config, memory, count) if memory else None
    return [
        replace(
            answers if prefill and rank >= prefill else config,
            cpus=tuple(cpus),
            first_gpu=rank * config.tensor_parallel_size,
            shared_kv=shared and replace(shared, replica=rank),
            report_cache=config.enable_prefix_caching,
            kv_events=events and replace(events, rank=numbers[rank]),
        )
        for rank, cpus in enumerate(rank_cpus(count, config.num_threads))
    ]


def _shared_kv(config: EngineConfig, memory: SharedFile, count: int) -> SharedKV:
    from quire.executor.memory import most_kv_blocks
    from quire.models.memory import kv_bytes_of

    return SharedKV(memory.path, most_kv_blocks(config, kv_bytes_of(config)), 0, count)
