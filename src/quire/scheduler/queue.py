"""The line of requests that wait to run."""

from __future__ import annotations

import heapq

from quire.core.request import Request, RequestStatus


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

    def pop(self) -> Request:
        request = self.peek()
        heapq.heappop(self._heap)
        self._live -= 1
        return request

    def forget(self, request: Request) -> None:
        """Account for a waiting request that has just been marked as finished."""
        assert request.status is RequestStatus.FINISHED
        self._live -= 1

    def requests(self) -> list[Request]:
        """Everyone in line, in no particular order."""
        return [r for _, r in self._heap if r.status is not RequestStatus.FINISHED]
