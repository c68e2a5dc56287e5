"""The line of requests that wait to run."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable

from quire.core.request import Request, RequestStatus

REACH = 32
"""Where one who waits may be overtaken (under the policy `lpm`, or while its adapter is one too
many), so many arrivals, from the first in line on, may be next."""


class WaitingQueue:
    """Requests by `Request.order`; a preempted request comes back to its old place in line.

    Removing one from the middle only marks it: the heap drops it when it comes to the top.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.order, request))
        self._live += 1

    def peek(self) -> Request:
        """The next request in line; the queue is not empty."""
        while self._heap[0][1].status is RequestStatus.FINISHED:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def take(self, request: Request) -> None:
        """Remove the request that `peek` gave."""
        assert request is heapq.heappop(self._heap)[1]
        self._live -= 1

    def forget(self, request: Request) -> None:
        """Account for a waiting request that has just been marked as finished."""
        assert request.status is RequestStatus.FINISHED
        self._live -= 1

    def requests(self) -> list[Request]:
        """Everyone in line, in no particular order."""
        return [r for _, r in self._heap if r.status is not RequestStatus.FINISHED]


class LongestPrefixQueue(WaitingQueue):
    """Whoever has the longest cached prefix is next, so that a prefix is used before it is evicted.

    Only the `REACH` arrivals from the first in line on are looked at, so that nobody is overtaken
    by more than `REACH` - 1 others.

    Args:
        cached: tokens or blocks of a request that are in the prefix cache now.
    """

    def __init__(self, cached: Callable[[Request], int]) -> None:
        self._cached = cached
        self._line: list[Request] = []

    def __len__(self) -> int:
        return len(self._line)

    def push(self, request: Request) -> None:
        insort(self._line, request, key=_order)

    def peek(self) -> Request:
        priority, arrival = self._line[0].order
        end = bisect_left(self._line, (priority, arrival + REACH), key=_order)
        return max(self._line[:end], key=self._cached)  # of equals the first

    def take(self, request: Request) -> None:
        del self._line[bisect_left(self._line, request.order, key=_order)]

    def forget(self, request: Request) -> None:
        self.take(request)

    def requests(self) -> list[Request]:
        return self._line.copy()


def _order(request: Request) -> tuple[int, int]:
    return request.order
