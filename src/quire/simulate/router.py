"""Which replica a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Policy = Literal["round-robin", "least-loaded", "prefix-aware"]
PREFIX_TOKENS = 64
"""Prompts that begin with the same so many tokens go together."""
IMBALANCE = 1.5
"""Until one replica has so many times the mean load, and `SLACK` requests more."""
SLACK = 4


class Router(Protocol):
    def choose(self, prompt: Sequence[int], loads: Sequence[int]) -> int:
        """The replica for a request, given the unfinished requests of each."""


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, prompt: Sequence[int], loads: Sequence[int]) -> int:
        chosen = self._next % len(loads)
        self._next += 1
        return chosen


class LeastLoaded:
    """The one with the fewest unfinished requests, the first of equals."""

    def choose(self, prompt: Sequence[int], loads: Sequence[int]) -> int:
        return min(range(len(loads)), key=loads.__getitem__)


class PrefixAware:
    """Where the prompt's beginning is likely to be cached, unless that replica is overloaded."""

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
    """A router by the name of its policy."""
    routers: dict[str, type[RoundRobin] | type[LeastLoaded] | type[PrefixAware]] = {
        "round-robin": RoundRobin,
        "least-loaded": LeastLoaded,
        "prefix-aware": PrefixAware,
    }
    return routers[policy]()
