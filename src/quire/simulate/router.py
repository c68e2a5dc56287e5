"""Policies that choose a replica for a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Policy = Literal["round-robin", "least-loaded", "prefix-aware"]
PREFIX_TOKENS = 64
"""Prompts with the same first tokens, this many, go to the same replica."""
IMBALANCE = 1.5
"""A replica is overloaded beyond this multiple of the mean load plus `SLACK` requests."""
SLACK = 4


class Router(Protocol):
    def choose(self, prompt: Sequence[int], loads: Sequence[int]) -> int:
        """Return the replica for a request, given the unfinished requests of each."""


class RoundRobin:
    """The replicas in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, prompt: Sequence[int], loads: Sequence[int]) -> int:
        chosen = self._next % len(loads)
        self._next += 1
        return chosen


class LeastLoaded:
    """The replica with the fewest unfinished requests; the first of equals."""

    def choose(self, prompt: Sequence[int], loads: Sequence[int]) -> int:
        return min(range(len(loads)), key=loads.__getitem__)


class PrefixAware:
    """The replica that has probably cached the prompt's prefix, unless it is overloaded."""

    def __init__(self) -> None:
        self._home: dict[tuple[int, ...], int] = {}

    def choose(self, prompt: Sequence[int], loads: Sequence[int]) -> int:
        key = tuple(prompt[:PREFIX_TOKENS])
        home = self._home.get(key)
        limit = IMBALANCE * sum(loads) / len(loads) + SLACK
        if home is None or loads[home] > limit:
            home = self._home[key] = min(range(len(loads)), key=loads.__getitem__)
        return home


def new_router(policy: Policy) -> Router:
    """Return a router by the name of its policy."""
    routers: dict[str, type[RoundRobin] | type[LeastLoaded] | type[PrefixAware]] = {
        "round-robin": RoundRobin,
        "least-loaded": LeastLoaded,
        "prefix-aware": PrefixAware,
    }
    return routers[policy]()
