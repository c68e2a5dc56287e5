"""Fair shares of the batch: a client that holds many seats gives some up to one that waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from heapq import nsmallest
from typing import Protocol

from quire.core.batch import Column
from quire.core.request import Request
from quire.kv.manager import KVCacheManager
from quire.scheduler.loading import Loading
from quire.scheduler.queue import REACH, WaitingQueue, order_of
from quire.scheduler.running import Admitted, RunningBatch

FACTOR = 2
"""A client yields to another while it holds this many times the seats that the other would have
then. With 1, two clients whose answers differ in length would preempt each other all the time."""
TRIED = 8
"""Clients whose next requests are tried in a step: one that does not fit keeps out no other."""


class Room(Protocol):
    """What `Admission` knows of the batch."""

    def reserved(self) -> Column: ...

    def fits_beside(self, request: Request, running: Sequence[Request]) -> bool: ...


class Seats:
    """Chooses a waiting request that goes before all others, and whom to preempt for it.

    At most `REACH` such requests go before an ordinary one, so that clients that keep coming do not
    starve one that waits for its second seat.

    Args:
        is_fair: False if clients take no turns in the queue.
    """

    def __init__(
        self,
        running: RunningBatch,
        waiting: WaitingQueue,
        loading: Loading,
        kv: KVCacheManager,
        max_num_seqs: int,
        *,
        is_fair: bool,
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._loading = loading
        self._kv = kv
        self._max_num_seqs = max_num_seqs
        self._is_fair = is_fair
        self._jumped = set[Request]()
        self._known: tuple[int, int] | None = None
        self._owed: list[Request] = []

    def owed(self) -> list[Request]:
        """Return the next request of each client that is owed a seat, the fewest seats first.

        At most `TRIED`.
        """
        if not self._is_fair or not self._waiting:
            return []
        version = self._running.version, self._waiting.version
        if version != self._known:
            self._known, self._owed = version, self._find()
        return self._owed

    def _find(self) -> list[Request]:
        seats = self._seats()
        most = max(seats.values(), default=0)
        owed = {name for name in self._waiting.clients if _yields(most, seats[name])}
        if len(self._jumped) >= REACH or not owed:
            return []
        priority = self._waiting.peek().order[0]
        firsts: dict[str, Request] = {}
        for request in self._waiting.requests():
            client = request.options.client
            if client in owed and request.order[0] == priority:
                known = firsts.setdefault(client, request)
                firsts[client] = min(known, request, key=order_of)
        return nsmallest(
            TRIED, firsts.values(), key=lambda each: (seats[each.options.client], each.order)
        )

    def share(self, room: Room) -> list[Request]:
        """Let the request go first that is owed a seat and fits; return whom to preempt for it."""
        for first in self.owed():
            victims = self._victims(first, room.reserved().tolist())
            if victims is None:
                continue
            left = [each for each in self._running.requests if each not in victims]
            if room.fits_beside(first, left):
                self._advance(first, victims)
                return victims
        self._owed = []  # until a request comes or goes: trying takes time
        return []

    def _victims(self, first: Request, reserved: Sequence[int]) -> list[Request] | None:
        """Return the running requests to preempt for `first`; None if that would not be fair."""
        seats = self._seats()
        held = seats[first.options.client]
        rows = defaultdict[str, list[int]](list)
        for row, each in enumerate(self._running.requests):
            if each.order[0] >= first.order[0]:
                rows[each.options.client].append(row)
        free = self._max_num_seqs - len(self._running) - len(self._loading)
        needed = sum(reserved) + self._loading.blocks_missing
        prefix = self._kv.find_prefix(first)
        found = list[Request]()
        while free <= 0 or not self._kv.can_admit(first, prefix, needed, len(found)):
            left = [name for name in rows if rows[name]]
            client = max(left, key=lambda name: (seats[name], rows[name][-1]), default=None)
            if client is None or not _yields(seats[client], held):
                return None
            row = rows[client].pop()
            found.append(self._running.requests[row])
            seats[client] -= 1
            free += 1
            needed -= reserved[row] + self._kv.num_own(found[-1])
        return found

    def _advance(self, first: Request, victims: Sequence[Request]) -> None:
        """Put `first` before the queue, and before `victims`, which return to it.

        Its place is before all requests of its priority of the client with the most seats. Later
        ones come behind it then, not before it.
        """
        seats = self._seats()
        client = max(seats, key=lambda name: seats[name])
        others = [
            each
            for each in self._running.requests
            if each.options.client == client and each.order[0] == first.order[0]
        ]
        before = min(each.order for each in (self._waiting.peek(), *victims, *others))
        self._jumped.add(first)
        if first.order >= before:
            self._waiting.move(first, (before[0], before[1] - 1, *first.order[2:]))

    def note(self, admitted: list[Admitted]) -> None:
        """Note that these requests begin to run."""
        if any(new.request not in self._jumped for new in admitted):
            self._jumped.clear()

    def _seats(self) -> Counter[str]:
        """Return how many seats each client holds."""
        holders = (*self._running.requests, *self._loading.requests())
        return Counter(request.options.client for request in holders)


def _yields(most: int, held: int) -> bool:
    """Return whether a client with `most` seats gives one to a client that holds `held`."""
    return most >= FACTOR * (held + 1)
