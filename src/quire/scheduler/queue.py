"""The queue of requests that wait to run."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable

from quire.core.request import Request, RequestStatus

REACH = 32
"""With the policy `lpm`, and while an adapter is one too many, the next request is one of this many
arrivals, counted from the first in the queue."""


class WaitingQueue:
    """Requests by `Request.order`. A preempted request returns to its old place.

    A finished request stays in the heap until it comes to the top.

    Attributes:
        resumed: the ids of those that had output when they came: preempted ones, and streams of
            another engine.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self._live = 0
        self.resumed: set[str] = set()

    def __len__(self) -> int:
        return self._live

    def push(self, request: Request) -> None:
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
        self.resumed.discard(request.request_id)

    def forget(self, request: Request) -> None:
        """Count a waiting request as removed, because it has just finished."""
        assert request.status is RequestStatus.FINISHED
        self._live -= 1
        self.resumed.discard(request.request_id)

    def _note(self, request: Request) -> None:
        if request.num_output_tokens:
            self.resumed.add(request.request_id)

    def requests(self) -> list[Request]:
        """Return all waiting requests, in no particular order."""
        return [r for _, r in self._heap if r.status is not RequestStatus.FINISHED]


class LongestPrefixQueue(WaitingQueue):
    """The longest cached prefix is next, so that a prefix is used before it is evicted.

    Only `REACH` arrivals, from the first one on, are considered. So at most `REACH` - 1 others
    overtake a request.

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
        priority, arrival = self._queue[0].order
        end = bisect_left(self._queue, (priority, arrival + REACH), key=order_of)
        return max(self._queue[:end], key=self._cached)  # the first of equals

    def take(self, request: Request) -> None:
        del self._queue[bisect_left(self._queue, request.order, key=order_of)]
        self.resumed.discard(request.request_id)

    def forget(self, request: Request) -> None:
        self.take(request)

    def requests(self) -> list[Request]:
        return self._queue.copy()


def order_of(request: Request) -> tuple[int, int]:
    return request.order


def reach_of(first: Request) -> tuple[int, int]:
    """Return the order from which on no request may overtake `first`."""
    priority, arrival = first.order
    return priority, arrival + REACH
