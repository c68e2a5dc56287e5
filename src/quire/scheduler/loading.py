"""Requests whose first blocks come from the host tier: admitted, and not running yet.

Such a request gets its blocks in one step, which loads into them and computes nothing for it. It
runs once that step is taken in and every load has succeeded. So a load that fails touches nobody:
nothing was computed from it, and no one shares it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from quire.core.batch import BlockLoad
from quire.core.request import Request, RequestStatus
from quire.kv.manager import NO_BLOCK, KVCacheManager, Stored
from quire.scheduler.running import Admitted


@dataclass(slots=True)
class _Arrival:
    """`num_computed` tokens of the request need not be computed once `loads` are done."""

    request: Request
    table: list[int]
    num_computed: int
    loads: list[BlockLoad]


class Loading:
    """Those whose blocks are being loaded, by step, and those who are ready to run.

    Args:
        max_chunk: most tokens of a request that one step computes.
    """

    def __init__(self, kv: KVCacheManager, max_chunk: int) -> None:
        self._kv = kv
        self._max_chunk = max_chunk
        self._by_step: dict[int, list[_Arrival]] = {}
        self._ready: list[_Arrival] = []

    def __len__(self) -> int:
        return len(self._ready) + sum(map(len, self._by_step.values()))

    def requests(self) -> list[Request]:
        """Everyone here, in no particular order."""
        arrivals = [*self._ready, *(a for step in self._by_step.values() for a in step)]
        return [arrival.request for arrival in arrivals]

    @property
    def blocks_missing(self) -> int:
        """Blocks that those here still need for the tokens they have."""
        return sum(map(self._kv.blocks_missing, self.requests())) if len(self) else 0

    def begin(self, step: int, request: Request, stored: Stored) -> None:
        """Admit a request, with blocks for what this step loads and for its first own one."""
        end = min(request.num_tokens, stored.num_tokens + self._max_chunk)
        table, loads = self._kv.admit_stored(request, stored, end)
        request.status = RequestStatus.LOADING
        arrival = _Arrival(request, table, stored.num_tokens, loads)
        self._by_step.setdefault(step, []).append(arrival)

    def begun(self, step: int) -> list[tuple[Request, int]]:
        """Whose loads a step brings, with the tokens that they then have."""
        return [(a.request, a.num_computed) for a in self._by_step.get(step, ())]

    def end(self, step: int, failed: Container[int]) -> list[Request]:
        """Take in how a step's loads went.

        Args:
            failed: the blocks that could not be loaded.

        Returns:
            The requests that lack some of theirs; they hold no blocks any more.
        """
        lacking = []
        for arrival in self._by_step.pop(step, ()):
            if self._kv.end_loads(arrival.loads, failed):
                self._kv.enter(arrival.request, arrival.num_computed)
                self._ready.append(arrival)
            else:
                self._kv.drop_swapped(arrival.request)
                lacking.append(self._leave(arrival))
        self._ready.sort(key=lambda arrival: arrival.request.order)
        return lacking

    def undo(self, step: int, *, failed: bool) -> list[Request]:
        """Take back the loads of a step, and the blocks of the requests that they were for.

        Args:
            failed: the step raised an error, perhaps because of its loads. They are not tried
                again: a step that only loads would fail for ever.

        Returns:
            The requests, which hold no blocks any more.
        """
        undone = self._by_step.pop(step, [])
        for arrival in undone:
            lost = {load.block for load in arrival.loads} if failed else ()
            if not self._kv.end_loads(arrival.loads, lost):
                self._kv.drop_swapped(arrival.request)
        return [self._leave(arrival) for arrival in undone]

    def run(self, budget: int) -> list[Admitted]:
        """Let those who are ready begin, in line order, as far as so many tokens go."""
        admitted = []
        while self._ready and budget > 0:
            arrival = self._ready.pop(0)
            request, start, table = arrival.request, arrival.num_computed, arrival.table
            scheduled = min(request.num_tokens - start, budget)
            budget -= scheduled
            request.status = RequestStatus.RUNNING
            self._kv.drop_swapped(request)
            entered = self._kv.enter(request, start + scheduled)
            slid = table.count(NO_BLOCK)
            admitted.append(Admitted(request, table, start, scheduled, entered, slid))
        return admitted

    def abort(self, request: Request) -> None:
        """Take the blocks of a request that has been marked as finished.

        What it was loading is written to them before anyone else's step.
        """
        for line in (self._ready, *self._by_step.values()):
            for arrival in line:
                if arrival.request is request:
                    line.remove(arrival)
                    self._kv.end_loads(arrival.loads, ())
                    self._kv.free(request)
                    return

    def _leave(self, arrival: _Arrival) -> Request:
        self._kv.free(arrival.request)
        arrival.request.status = RequestStatus.PREEMPTED
        return arrival.request
