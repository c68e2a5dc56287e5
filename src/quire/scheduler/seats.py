"""Fair shares of the batch: a client that holds much gives some up to one that waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from math import inf
from typing import Protocol

from quire.core.batch import Column
from quire.core.request import Request
from quire.kv.manager import KVCacheManager
from quire.kv.stored import held_blocks
from quire.scheduler.loading import Loading
from quire.scheduler.queue import REACH, WaitingQueue, order_of
from quire.scheduler.running import Admitted, RunningBatch
from quire.scheduler.steps import InFlight

FACTOR = 2
"""A client yields to another while it holds this many times the seats, or blocks, that the other
would have then. With 1, two clients whose answers differ in length would preempt each other all the
time."""
TRIED = 8
"""Clients whose next requests are tried in a step: one that does not fit keeps out no other."""
TURN = 0.5
"""Seconds that a request with most of the cache decodes at least, before others may displace it."""


class Room(Protocol):
    """What `Admission` knows of the batch."""

    def reserved(self) -> Column: ...

    def fits_beside(self, request: Request, running: Sequence[Request]) -> bool: ...


class Seats:
    """Chooses a waiting request that goes before all others, and whom to preempt for it.

    At most `REACH` requests that are owed a seat or blocks go before an ordinary one, so that
    clients that keep coming do not starve one that waits for its second seat. One that is owed
    tokens does not count: it goes before requests of a client that computes a prompt already.

    Args:
        is_fair: False if clients take no turns in the queue.

    Attributes:
        now: the time of the step.
    """

    now = 0.0

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
        self._num_jumped = 0
        """Since an ordinary request began."""
        self._owed_tokens = set[str]()
        self._known: tuple[int, int] | None = None
        self._owed: list[Request] = []
        self._again = inf
        """When a turn ends that is in the way."""

    def owed(self) -> list[Request]:
        """Return the next request of each client that is owed a seat, the fewest seats first.

        At most `TRIED`.
        """
        if not self._is_fair or not self._waiting:
            return []
        version = self._running.version, self._waiting.version
        if version != self._known or self.now >= self._again:
            self._known, self._owed, self._again = version, self._find(), inf
        return self._owed

    def _find(self) -> list[Request]:
        owed = self._clients_owed()
        if not owed:
            return []
        seats = self._seats()
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

    def _clients_owed(self) -> set[str]:
        """Return the waiting clients to which another may have to yield a seat, blocks or tokens.

        The next request's client yields tokens if it computes a prompt, to those that do not.
        """
        clients, owed = self._waiting.clients, set[str]()
        if len(clients) == 1 and self._running.clients.keys() <= clients.keys():
            return owed
        blocks, prompts = Counter[str](), set[str]()
        rows = zip(
            self._running.requests,
            (self._running.capacity // self._kv.block_size - self._running.slid).tolist(),
            self._running.awaits_first.tolist(),
            strict=True,
        )
        for request, count, is_prompt in rows:
            blocks[request.options.client] += count  # at least as many as it really holds
            if is_prompt:
                prompts.add(request.options.client)
        if self._num_jumped < REACH:
            for held in (self._seats(), blocks):
                most = max(held.values(), default=0)
                owed.update(name for name in clients if _yields(most, held[name] + 1))
        next_computes = self._waiting.peek().options.client in prompts
        self._owed_tokens = clients.keys() - prompts if next_computes else set()
        return owed | self._owed_tokens

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
        """Return the running requests to preempt for `first`; None if that would not be fair.

        Seats are compared while it lacks a seat, and blocks while it lacks only these.
        """
        seats, me = self._seats(), first.options.client
        rows = defaultdict[str, list[int]](list)
        for row, each in enumerate(self._running.requests):
            if each.order[0] >= first.order[0] and each.options.client != me:
                rows[each.options.client].append(row)
        free = self._max_num_seqs - len(self._running) - len(self._loading)
        needed = sum(reserved) + self._loading.blocks_missing
        prefix = self._kv.find_prefix(first)
        more = self._kv.most_blocks(first.num_tokens)
        found, states = list[Request](), self._kv.states
        while free <= 0 or not self._kv.can_admit(first, prefix, needed, len(found)):
            if free <= 0 or not (states is None or states.has_room(len(found))):
                held, would_have = seats, seats[me] + 1
            else:
                held = self._blocks(found)
                would_have = held[me] + more
            left = [name for name in rows if rows[name]]
            client = max(left, key=lambda name: (held[name], rows[name][-1]), default=None)
            if client is None or not _yields(held[client], would_have):
                return None
            row = rows[client].pop()
            found.append(self._running.requests[row])
            is_only = held is not seats and self._blocks(found)[client] < would_have
            if is_only and not self._had_turn(found[-1]):
                return None
            seats[client] -= 1
            free += 1
            needed -= reserved[row] + self._kv.num_own(found[-1])
        return found

    def _had_turn(self, request: Request) -> bool:
        """Return whether a client's only request may be displaced for blocks.

        It holds most of the cache, and has decoded for `TURN` seconds, and for as long as it had
        been away and computing before. So it decodes for half of the time, whoever comes.
        """
        begun = request.decodes_since
        if begun is None or not self._is_large(request):
            return False
        away = begun - max(request.first_scheduled_time, request.preempted_time)
        ends = begun + max(TURN, away)
        if self.now < ends:
            self._again = min(self._again, ends)
        return self.now >= ends

    def _is_large(self, request: Request) -> bool:
        """Return whether it holds more than half of the blocks."""
        held = held_blocks(self._kv.table(request.request_id))
        return 2 * len(held) > self._kv.pool.num_blocks

    def note_tokens(self, flight: InFlight, came: Column, now: float) -> None:
        """Note who sampled a first token since its admission, in a step that landed `now`."""
        for entry in flight.prefills:
            request = flight.requests[entry]
            if came[entry] and request.running:
                request.decodes_since = now
                if self._is_large(request):
                    self._known = None  # its turn begins

    def last_row(self) -> int:
        """Return the row to preempt while blocks are short.

        It is the last one. If its client has far fewer blocks than another, it is the last one of
        the other, which must have as many left. So no client loses its only request for another's.
        """
        requests = self._running.requests
        end = len(requests) - 1
        if not self._is_fair or len(self._running.clients) == 1:
            return end
        held, last = self._blocks(), requests[end]
        rows = {
            each.options.client: row
            for row, each in enumerate(requests)
            if each.order[0] == last.order[0]
        }
        client = max(rows, key=lambda name: (held[name], rows[name]))
        theirs = held[last.options.client]
        if not _yields(held[client], theirs):
            return end
        left = self._blocks([requests[rows[client]]])[client]
        return rows[client] if left >= theirs else end

    def _advance(self, first: Request, victims: Sequence[Request]) -> None:
        """Put `first` before the queue, and before `victims`, which return to it.

        If it is owed a seat, its place is before all requests of its priority of the client with
        the most seats. Later ones come behind it then, not before it.
        """
        seats = self._seats()
        client = max(seats, key=lambda name: seats[name])
        owed_seat = _yields(seats[client], seats[first.options.client] + 1)
        others = [
            each
            for each in self._running.requests
            if owed_seat and each.options.client == client and each.order[0] == first.order[0]
        ]
        before = min(each.order for each in (self._waiting.peek(), *victims, *others))
        self._jumped.add(first)
        self._num_jumped += first.options.client not in self._owed_tokens
        if first.order >= before:
            self._waiting.move(first, (before[0], before[1] - 1, *first.order[2:]))

    def note(self, admitted: list[Admitted]) -> None:
        """Note that these requests begin to run."""
        requests = {new.request for new in admitted}
        if not requests <= self._jumped:
            self._num_jumped = 0
        self._jumped -= requests

    def _seats(self) -> Counter[str]:
        seats = Counter(self._running.clients)
        seats.update(request.options.client for request in self._loading.requests())
        return seats

    def _blocks(self, without: Iterable[Request] = ()) -> Counter[str]:
        """Return how many blocks each client holds, if requests `without` hold none."""
        blocks = defaultdict[str, set[int]](set)
        for request in (*self._running.requests, *self._loading.requests()):
            if request not in without:
                table = self._kv.table(request.request_id)
                blocks[request.options.client].update(held_blocks(table))
        return Counter({client: len(held) for client, held in blocks.items()})


def _yields(most: int, would_have: int) -> bool:
    """Return whether a client with `most` yields to one that would have `would_have`."""
    return most >= FACTOR * would_have
