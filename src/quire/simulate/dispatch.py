"""Sends a simulated request to the replica that the router chooses, in one piece or in two."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from quire.core.config import EngineConfig
from quire.core.cost import StepCost
from quire.core.errors import ConfigError
from quire.core.kv_sharing import SharedKV
from quire.core.messages import AddRequest, CoreInput, StepOutputs
from quire.executor.memory import most_kv_blocks
from quire.models.memory import kv_bytes_of
from quire.routing.halves import Ended, end_half, half_of, most_alone
from quire.routing.ledger import Ledger
from quire.routing.router import CacheAwareRouter, Prompts, Router

Make = Callable[[int, float], AddRequest]
"""Returns the message of a request, by its index and the time of its arrival."""


class Target(Protocol):
    """A replica."""

    config: EngineConfig

    def send(self, message: CoreInput | int, now: float) -> None:
        """Take a message, or the index of a request, at `now`; see `fleet.Replica`."""


class _Report(NamedTuple):
    """A step's outputs, which the front end gets at `time`."""

    time: float
    replica: int
    number: int
    step: StepOutputs
    halves: list[Ended]


class Dispatch:
    """Requests in one piece. Without a router there is one replica."""

    def __init__(self, replicas: Sequence[Target], router: Router | None, make: Make) -> None:
        self.replicas, self.make = replicas, make
        config = replicas[0].config
        algo, seed = config.prefix_caching_hash_algo, config.prefix_caching_hash_seed
        self._prompts = Prompts(config.block_size, algo, seed)
        self._router = router
        self._reports: list[_Report] = []
        self._num_reports = 0

    @property
    def next_report(self) -> float | None:
        """Return when the front end gets the next step's outputs."""
        return self._reports[0].time if self._reports else None

    def send(self, index: int, now: float) -> None:
        """Send a request that arrives at `now`."""
        self._choose(self._router, index, now)

    def _choose(
        self, router: Router | None, index: int, now: float, among: int | None = None
    ) -> None:
        chosen = 0
        if router is not None:
            prompt = self._prompts.of(self.make(index, now))
            chosen = router.choose(prompt, among)
            router.add(chosen, str(index), prompt)
        self.replicas[chosen].send(index, now)

    def stepped(self, time: float, replica: int, step: StepOutputs) -> int:
        """Take a step's outputs, which end at `time`; return how many halves of requests end."""
        if self._router is None:
            return 0
        halves = self._take_halves(step)
        self._num_reports += 1
        heapq.heappush(self._reports, _Report(time, replica, self._num_reports, step, halves))
        return len(halves)

    def _take_halves(self, step: StepOutputs) -> list[Ended]:
        return []

    def report(self) -> None:
        """Let the front end read the next step's outputs."""
        self._read(heapq.heappop(self._reports))

    def _read(self, report: _Report) -> None:
        assert self._router is not None
        self._router.note(report.replica, report.step)


class HalvedDispatch(Dispatch):
    """Prompts on the first replicas, answers on the others, as `frontend.client.fleet` does it.

    Attributes:
        ledger: the present loans of blocks.
        waiting: requests whose prompts are being computed, by the ids of their halves.
    """

    def __init__(
        self,
        replicas: Sequence[Target],
        router: CacheAwareRouter,
        make: Make,
        cost: StepCost,
        num_prefill: int,
        shared: SharedKV,
    ) -> None:
        super().__init__(replicas, router, make)
        self._cache_router = router
        self._alone = most_alone(cost, copied=False)
        self._prefill = (1 << num_prefill) - 1
        self._answers = (1 << len(replicas)) - 1 - self._prefill
        self.ledger = Ledger(shared, self._tell)
        self.waiting: dict[str, AddRequest] = {}
        self._now = 0.0

    def send(self, index: int, now: float) -> None:
        """See `Dispatch`."""
        message, router = self.make(index, now), self._cache_router
        prompt = self._prompts.of(message)
        if router.num_uncached(prompt, self._answers) <= self._alone:
            self._choose(router, index, now, self._answers)
            return
        half = half_of(message)
        chosen = router.choose(prompt, self._prefill)
        router.add(chosen, half.request_id, prompt)
        self.waiting[half.request_id] = message
        self.replicas[chosen].send(half, now)

    def _take_halves(self, step: StepOutputs) -> list[Ended]:
        found = []
        for output in [output for output in step.outputs if output.request_id in self.waiting]:
            name = output.request_id
            self._cache_router.remove(name)
            ended = end_half(step, output, [self.waiting.pop(name)])
            if ended.children:
                found.append(ended)
            elif ended.lent is not None:
                self.ledger.send_back(ended.lent.blocks)
        return found

    def _read(self, report: _Report) -> None:
        super()._read(report)
        self._now, router = report.time, self._cache_router
        self.ledger.end(report.replica, report.step.returned)
        for ended in report.halves:
            [message] = ended.messages
            prompt = self._prompts.of(ended.children[0])
            chosen = router.choose(prompt, self._answers)
            router.add(chosen, message.request_id, prompt)
            if ended.lent is not None:
                self.ledger.lend(chosen, ended.lent)
            self.replicas[chosen].send(message, report.time)

    def _tell(self, replica: int, message: CoreInput) -> None:
        self.replicas[replica].send(message, self._now)


def with_shared_kv(config: EngineConfig, count: int) -> list[EngineConfig]:
    """Return a configuration per replica; they lend each other blocks if those of a server do."""
    transfer = config.transfer
    if transfer is None or not transfer.shares_memory:
        return [config] * count
    stride = most_kv_blocks(config, kv_bytes_of(config))
    return [replace(config, shared_kv=SharedKV("", stride, rank, count)) for rank in range(count)]


def halved(
    replicas: Sequence[Target], router: Router | None, make: Make, cost: StepCost
) -> HalvedDispatch | None:
    """Return what sends prompts and answers to replicas of their own; None if all are alike.

    Raises:
        ConfigError: the replicas do not share memory.
    """
    config = replicas[0].config
    if config.transfer is None or not config.transfer.prefill_replicas:
        return None
    if config.shared_kv is None:
        raise ConfigError(
            "Replicas for prompts are simulated only where they lend blocks in shared memory: "
            "without recurrent layers, speculative decoding and several ranks per replica.",
            param="--prefill-replicas",
        )
    assert isinstance(router, CacheAwareRouter)
    num_prefill = config.transfer.prefill_replicas
    return HalvedDispatch(replicas, router, make, cost, num_prefill, config.shared_kv)
