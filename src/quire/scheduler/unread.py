"""Waiting requests whose first image has to be read ahead."""

from __future__ import annotations

from bisect import insort

from quire.core.request import Request
from quire.kv.manager import KVCacheManager
from quire.scheduler.image_chunks import ImageChunks
from quire.scheduler.queue import WaitingQueue, order_of


class Unread:
    """Requests that left the queue because they wait for an image; each returns to its old place.

    They hold no seat and no block, and any request may overtake them. So texts wait for no image,
    however many there are. Nor do they count as waiting prompts, for which a step takes longer.

    Attributes:
        requests: by their order. The image of the first is read next.
    """

    def __init__(
        self, waiting: WaitingQueue, kv: KVCacheManager, image_chunks: ImageChunks
    ) -> None:
        self.requests: list[Request] = []
        self._waiting = waiting
        self._kv = kv
        self._chunks = image_chunks
        self._num_read = 0

    def __len__(self) -> int:
        return len(self.requests)

    def takes(self, request: Request, start: int, aside: list[Request]) -> bool:
        """Return whether an image keeps the first request in the queue from beginning.

        Then it leaves the queue: for here, or `aside` until the step is scheduled.
        """
        if self._chunks.is_unread(request, start):
            insort(self.requests, request, key=order_of)
        elif self._chunks.is_next(request):
            return False
        else:
            aside.append(request)
        self._waiting.take(request)
        return True

    def forget(self, request: Request) -> bool:
        """Remove a request that has ended; return whether it was here."""
        if request not in self.requests:
            return False
        self.requests.remove(request)
        return True

    def release(self) -> None:
        """Return requests to the queue that need not wait any more.

        Looks at the first one, and at all if another image has been read or nothing decodes.
        """
        chunks = self._chunks
        every = chunks.num_read != self._num_read or not chunks.streams
        self._num_read = chunks.num_read
        left = list[Request]()
        for number, request in enumerate(self.requests):
            if (number == 0 or every) and not self._waits(request):
                self._waiting.push(request)
            else:
                left.append(request)
        self.requests = left

    def _waits(self, request: Request) -> bool:
        cached = len(self._kv.find_prefix(request)) * self._kv.block_size
        return self._chunks.is_unread(request, cached)
