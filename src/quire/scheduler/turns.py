"""Shares of a step's prompt tokens: a client's long prompt keeps out no other client's prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from quire.core.batch import Column


def in_turns(
    wanted: Column, clients: Sequence[str], queued: Mapping[str, int], budget: int
) -> Column:
    """Return each request's tokens if clients share the budget equally.

    What a client does not need goes to the others. Each spends its part in order, running requests
    before waiting ones.

    Args:
        wanted: tokens of each running request.
        clients: the client of each.
        queued: tokens of requests that may be admitted to this step, by client.
    """
    demand = Counter(queued)
    tokens = wanted.tolist()
    for client, count in zip(clients, tokens, strict=True):
        demand[client] += count
    parts = level(demand, budget)
    for row, client in enumerate(clients):
        tokens[row] = min(tokens[row], parts[client])
        parts[client] -= tokens[row]
    return np.array(tokens, dtype=np.int64)


def level(demand: Mapping[str, int], budget: int) -> dict[str, int]:
    """Return parts of `budget` as equal as the demands allow."""
    parts = dict[str, int]()
    names = sorted(demand, key=demand.__getitem__)
    for left, name in zip(range(len(names), 0, -1), names, strict=True):
        parts[name] = min(demand[name], budget // left)
        budget -= parts[name]
    return parts
