"""Requests whose first blocks are being loaded from the host tier: admitted, not running yet.

A request gets its blocks in one step, which begins to load into them and computes nothing for it.
Loads from files go on while later steps compute. The request runs once all its loads have
succeeded. So a failed load does no harm: nothing was computed from its block, and no request
shares it.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.batch import BlockLoad
from quire.core.request import Request, RequestStatus
from quire.kv.manager import KVCacheManager
from quire.kv.prefix import NO_BLOCK
from quire.kv.stored import Stored
from quire.scheduler.image_chunks import ImageChunks
from quire.scheduler.running import Admitted
from quire.system.records import dataclass


@dataclass(slots=True)
class _Arrival:
    """A request that has `num_computed` computed tokens once `loads` are done."""

    request: Request
    table: list[int]
    num_computed: int
    loads: list[BlockLoad]


class Loading:
    """Requests whose blocks are being loaded, by step, and requests that are ready to run.

    Args:
        max_chunk: the most tokens of a request in one step.
    """

    def __init__(self, kv: KVCacheManager, max_chunk: int, image_chunks: ImageChunks) -> None:
        self._image_chunks = image_chunks
        self._kv = kv
        self._max_chunk = max_chunk
        self._by_step: dict[int, list[_Arrival]] = {}
        self._pending: list[_Arrival] = []  # their steps have landed, but not all loads
        self._ready: list[_Arrival] = []

    def __len__(self) -> int:
        begun = sum(map(len, self._by_step.values()))
        return len(self._ready) + len(self._pending) + begun

    def requests(self) -> list[Request]:
        """Return all of them, in no particular order."""
        begun = (arrival for step in self._by_step.values() for arrival in step)
        return [arrival.request for arrival in (*self._ready, *self._pending, *begun)]

    def next(self) -> tuple[Request, int] | None:
        """Return the next request that is ready to run, and its tokens to compute."""
        if not self._ready:
            return None
        request = self._ready[0].request
        return request, request.num_tokens - self._ready[0].num_computed

    @property
    def blocks_missing(self) -> int:
        """Return how many more blocks they need for their present tokens."""
        return sum(map(self._kv.blocks_missing, self.requests()))

    def begin(self, step: int, request: Request, stored: Stored) -> None:
        """Admit a request, with blocks for its loads and for its first chunk after them."""
        end = min(request.num_tokens, stored.num_tokens + self._max_chunk)
        table, loads = self._kv.admit_stored(request, stored, end)
        request.status = RequestStatus.LOADING
        arrival = _Arrival(request, table, stored.num_tokens, loads)
        self._by_step.setdefault(step, []).append(arrival)

    def begun(self, step: int) -> list[tuple[Request, int]]:
        """Return the requests that load in a step, with their tokens afterwards."""
        return [(a.request, a.num_computed) for a in self._by_step.get(step, ())]

    def end(self, step: int, failed: Iterable[int], pending: Iterable[int] = ()) -> list[Request]:
        """End the loads that have ended when a step lands.

        Args:
            failed: the blocks that could not be loaded.
            pending: the blocks whose loads go on.

        Returns:
            The requests with a failed load, which hold no blocks any more.
        """
        arrivals, self._pending = self._pending + self._by_step.pop(step, []), []
        lacking, lost, waits = list[Request](), {*failed}, {*pending}
        for arrival in arrivals:
            blocks = {load.block for load in arrival.loads}
            if blocks.isdisjoint(lost) and not blocks.isdisjoint(waits):
                self._pending.append(arrival)
            elif self._kv.end_loads(arrival.loads, lost):
                self._kv.enter(arrival.request, arrival.num_computed)
                self._ready.append(arrival)
            else:
                self._kv.cancel_loads(load for load in arrival.loads if load.block in waits)
                self._kv.drop_swapped(arrival.request)
                lacking.append(self._leave(arrival))
        self._ready.sort(key=lambda arrival: arrival.request.order)
        return lacking

    def undo(self, step: int, *, failed: bool) -> list[Request]:
        """Undo the loads of a step, and free the blocks of their requests.

        Args:
            failed: the step raised an error, perhaps because of its loads. They are not tried
                again: a step that only loads would fail forever. Nobody knows which of the pending
                loads have ended in it.

        Returns:
            The requests, which hold no blocks any more.
        """
        undone = self._by_step.pop(step, [])
        if failed:
            undone, self._pending = undone + self._pending, []
        for arrival in undone:
            self._kv.cancel_loads(arrival.loads)
            lost = {load.block for load in arrival.loads} if failed else ()
            if not self._kv.end_loads(arrival.loads, lost):
                self._kv.drop_swapped(arrival.request)
        return [self._leave(arrival) for arrival in undone]

    def run(self, budget: int, room: int) -> list[Admitted]:
        """Start the ready requests, in order, until the token budget is spent.

        `room` is that of `ImageChunks.chunk`.
        """
        admitted = []
        while self._ready and budget > 0:
            arrival = self._ready[0]
            request, start, table = arrival.request, arrival.num_computed, arrival.table
            scheduled = min(request.num_tokens - start, budget)
            scheduled = self._image_chunks.chunk(request, start, scheduled, room)
            if not scheduled:
                break
            self._ready.pop(0)
            budget -= scheduled
            room -= scheduled
            request.status = RequestStatus.RUNNING
            self._kv.drop_swapped(request)
            entered = self._kv.enter(request, start + scheduled)
            slid = table.count(NO_BLOCK)
            admitted.append(Admitted(request, table, start, scheduled, entered, slid))
        return admitted

    def abort(self, request: Request) -> None:
        """Free the blocks of a finished request, and cancel its loads."""
        for arrivals in (self._ready, self._pending, *self._by_step.values()):
            for arrival in arrivals:
                if arrival.request is request:
                    arrivals.remove(arrival)
                    if arrivals is not self._ready:
                        self._kv.cancel_loads(arrival.loads)
                    self._kv.end_loads(arrival.loads, ())
                    self._kv.free(request)
                    return

    def _leave(self, arrival: _Arrival) -> Request:
        self._kv.free(arrival.request)
        arrival.request.status = RequestStatus.PREEMPTED
        return arrival.request
