"""Policies that choose a replica for a request: the cache-aware router, and two simple ones."""

from __future__ import annotations

from typing import Literal

from quire.core.config import EngineConfig
from quire.core.cost import StepCost
from quire.core.messages import StepOutputs
from quire.routing.router import CacheAwareRouter, Prompt, Router

Policy = Literal["round-robin", "least-loaded", "prefix-aware"]


class Counting(Router):
    """Counts the unfinished requests of each replica.

    Attributes:
        loads: these counts, by replica.
    """

    def __init__(self, num_replicas: int) -> None:
        self.loads = [0] * num_replicas
        self._at: dict[str, int] = {}

    def add(self, replica: int, request_id: str, prompt: Prompt) -> None:
        self._at[request_id] = replica
        self.loads[replica] += 1

    def remove(self, request_id: str) -> None:
        if (replica := self._at.pop(request_id, None)) is not None:
            self.loads[replica] -= 1

    def note(self, replica: int, step: StepOutputs) -> None:
        for output in step.outputs:
            if output.finish_reason is not None:
                self.remove(output.request_id)


class RoundRobin(Counting):
    """The replicas in turn."""

    _sent = 0

    def choose(self, prompt: Prompt, among: int | None = None) -> int:
        return self._sent % len(self.loads)

    def add(self, replica: int, request_id: str, prompt: Prompt) -> None:
        super().add(replica, request_id, prompt)
        self._sent += 1


class LeastLoaded(Counting):
    """The replica with the fewest unfinished requests; the first of equals."""

    def choose(self, prompt: Prompt, among: int | None = None) -> int:
        return min(range(len(self.loads)), key=self.loads.__getitem__)


def new_router(policy: Policy, count: int, config: EngineConfig, cost: StepCost) -> Router:
    """Return a router for `count` replicas, by the name of its policy."""
    if policy == "prefix-aware":
        max_num_seqs = config.scheduler.max_num_seqs
        return CacheAwareRouter(
            count, cost, block_size=config.block_size, max_num_seqs=max_num_seqs
        )
    return (RoundRobin if policy == "round-robin" else LeastLoaded)(count)
