"""The queue of requests that wait to run."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import count

from quire.core.request import Request, RequestStatus
from quire.system.tally import Tally

REACH = 32
"""With the policy `lpm`, and while an adapter is one too many, the next request is one of this many
rounds, counted from the first in the queue."""
REMEMBERED = 1024
"""Clients whose last rounds are stored before outdated ones are removed; and most turns of a round,
so that new clients that keep coming do not keep out those with a request of the next round."""


class Rounds:
    """Clients take turns: in each round, one request of each (start-time fair queueing).

    With one client, rounds are the order of arrival.
    """

    def __init__(self) -> None:
        self._now = 0
        self._turns = 0
        """In the present round."""
        self._last: dict[str, int] = {}
        self._most = REMEMBERED

    @property
    def num_clients(self) -> int:
        return len(self._last)

    def next(self, client: str) -> int:
        """Return the round of a client's new request: after its last one, and not in the past."""
        if len(self._last) >= self._most:
            self._last = {name: last for name, last in self._last.items() if last >= self._now}
            self._most = max(REMEMBERED, 2 * len(self._last))
        found = self._last[client] = max(self._now, self._last.get(client, -1) + 1)
        return found

    def reach(self, number: int) -> None:
        """Note that a request of this round has its turn."""
        self._turns += 1
        if number > self._now or self._turns > REMEMBERED:
            self._now, self._turns = max(number, self._now + 1), 1


class WaitingQueue:
    """Requests by `Request.order`: priority, then clients in turns. A preempted request returns
    to its old place.

    A finished request stays in the heap until it comes to the top.

    Attributes:
        resumed: the ids of those that had output when they came: preempted ones, and streams of
            another engine.
        clients: the number of requests of each client that has any.
        version: changes when a request comes or goes.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, ...], Request]] = []
        self._live = 0
        self._rounds = Rounds()
        self._arrivals = count()
        self.resumed: set[str] = set()
        self.clients = Tally[str]()
        self.version = 0

    def __len__(self) -> int:
        return self._live

    @property
    def num_clients(self) -> int:
        """Return how many clients there are, or were not long ago."""
        return self._rounds.num_clients

    def add(self, request: Request, priority: int) -> None:
        """Queue a new request."""
        turn = self._rounds.next(request.options.client)
        request.order = priority, turn, next(self._arrivals)
        self.push(request)

    def push(self, request: Request) -> None:
        """Queue a request that has its order."""
        heapq.heappush(self._heap, (request.order, request))
        self._live += 1
        self._note(request)

    def peek(self) -> Request:
        """Return the next request; the queue must not be empty."""
        while self._heap[0][1].status is RequestStatus.FINISHED:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def take(self, request: Request) -> None:
        """Remove the request that `peek` returned."""
        assert request is heapq.heappop(self._heap)[1]
        self._live -= 1
        self._rounds.reach(request.order[1])
        self._note_end(request)

    def move(self, request: Request, order: tuple[int, ...]) -> None:
        """Give a waiting request another place."""
        self._heap = [entry for entry in self._heap if entry[1] is not request]
        request.order = order
        self._heap.append((order, request))
        heapq.heapify(self._heap)

    def forget(self, request: Request) -> None:
        """Count a waiting request as removed, because it has just finished."""
        assert request.status is RequestStatus.FINISHED
        self._live -= 1
        self._note_end(request)

    def _note(self, request: Request) -> None:
        self.version += 1
        self.clients.change(request.options.client, 1)
        if request.num_output_tokens:
            self.resumed.add(request.request_id)

    def _note_end(self, request: Request) -> None:
        self.version += 1
        self.clients.change(request.options.client, -1)
        self.resumed.discard(request.request_id)

    def requests(self) -> list[Request]:
        """Return all waiting requests, in no particular order."""
        return [r for _, r in self._heap if r.status is not RequestStatus.FINISHED]


class LongestPrefixQueue(WaitingQueue):
    """The longest cached prefix is next, so that a prefix is used before it is evicted.

    Only `REACH` rounds, from the first one's on, are considered. So at most `REACH` - 1 others of
    each client overtake a request.

    Args:
        cached: returns a request's tokens or blocks in the prefix cache.
    """

    def __init__(self, cached: Callable[[Request], int]) -> None:
        super().__init__()
        self._cached = cached
        self._queue: list[Request] = []

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, request: Request) -> None:
        insort(self._queue, request, key=order_of)
        self._note(request)

    def peek(self) -> Request:
        end = bisect_left(self._queue, reach_of(self._queue[0]), key=order_of)
        return max(self._queue[:end], key=self._cached)  # the first of equals

    def take(self, request: Request) -> None:
        self._rounds.reach(self._queue[0].order[1])
        del self._queue[bisect_left(self._queue, request.order, key=order_of)]
        self._note_end(request)

    def forget(self, request: Request) -> None:
        self.take(request)

    def requests(self) -> list[Request]:
        return self._queue.copy()


def order_of(request: Request) -> tuple[int, ...]:
    return request.order


def reach_of(first: Request) -> tuple[int, ...]:
    """Return the order from which on no request may overtake `first`."""
    priority, turn, *_ = first.order
    return priority, turn + REACH
