"""The running requests and their counters in arrays: a step costs only a few array operations."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from itertools import chain, compress, count
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import Column
from quire.core.request import Request
from quire.scheduler.turns import in_turns
from quire.system.records import dataclass
from quire.system.tally import Tally


@dataclass(slots=True)
class Admitted:
    """A request that begins to run, with its initial counters (see `RunningBatch`)."""

    request: Request
    table: list[int]
    num_computed: int
    scheduled: int
    entered: int
    slid: int


class RunningBatch:
    """Requests in queue order; the last one is preempted first.

    Attributes:
        requests, request_ids, token_ids: lists in that order. They are replaced, never changed,
            when a request joins or leaves, because steps in flight refer to them.
        ones: a one for each request, read-only.
        versions: the unused version numbers.
        version: changes when a request joins or leaves.
        stop_ids: the requests' stop tokens, each with the number of requests that have it.
        clients: the number of requests of each client that has any.
        quiet: the next steps in which each request only decodes one token: none reaches its limit
            or moves its window, unless a request joins or leaves.
        until_block: the next of these steps in which no request needs a block or fills one.

    Counters, int64 [n] views, valid until a request joins or leaves:

        num_tokens: the request's tokens, including all that steps in flight may yield.
        num_pending: how many tokens steps in flight may yield.
        num_computed: tokens that are computed once the steps in flight have landed.
        scheduled: tokens that the next step computes.
        further: tokens that it may yield after the first, each computed in it but the last.
        limit: the number of tokens at which the request ends.
        capacity: tokens that its blocks hold.
        entered: tokens in blocks that are in the prefix cache.
        slid: blocks at the start of its table that left the window and were freed.
        awaits_first: 1 until a step may sample its first token since its admission.
    """

    def __init__(self, max_num_seqs: int, block_size: int, micro_batches: int) -> None:
        """`micro_batches`: see `SchedulerConfig`."""
        self._block_size = block_size
        self._micro_batches = micro_batches
        self._columns = np.zeros((10, max_num_seqs), dtype=np.int64)
        self.requests: list[Request] = []
        self.request_ids: list[str] = []
        self.token_ids: list[array[int]] = []
        self.stop_ids = Tally[int]()
        self.clients = Tally[str]()
        self.versions = count(1)
        self.version = next(self.versions)
        self._view()

    def __len__(self) -> int:
        return len(self.requests)

    def _view(self) -> None:
        (
            self.num_tokens,
            self.num_pending,
            self.num_computed,
            self.scheduled,
            self.further,
            self.limit,
            self.capacity,
            self.entered,
            self.slid,
            self.awaits_first,
        ) = columns = self._columns[:, : len(self.requests)]
        self._growing = columns[:3]
        self.ones = np.ones(len(self.requests), dtype=np.int64)
        self.ones.flags.writeable = False
        self.quiet = self.until_block = 0

    def decode(self) -> None:
        """Count one token of each request as sampled and computed by a step in flight."""
        self._growing += 1
        self.quiet -= 1
        self.until_block -= 1

    def wanted(self) -> Column:
        """Return each request's tokens to compute; 0 if it may end in a step in flight.

        With micro-batches, also 0 if a step in flight samples its next token, and for decoding
        requests beyond one micro-batch's part. Chunks of a prompt may follow each other.
        """
        wanted: Column = self.num_tokens - self.num_computed
        wanted[self.num_tokens >= self.limit] = 0
        if self._micro_batches > 1:
            wanted[self.num_pending > 0] = 0
            part = -(-len(self) // self._micro_batches)
            wanted[(wanted == 1).nonzero()[0][part:]] = 0
        return wanted

    def pictured(self, wanted: Column) -> NDArray[np.bool_]:
        """Return which requests compute a prompt with images."""
        found: NDArray[np.bool_] = wanted > 1
        for row in found.nonzero()[0].tolist():
            found[row] = bool(self.requests[row].inputs.images)
        return found

    def share(
        self,
        wanted: Column,
        budget: int,
        queued: Mapping[str, int] = MappingProxyType({}),
        *,
        others: bool = False,
    ) -> Column:
        """Return each request's tokens: one each first, then the rest of the budget in order.

        So a request behind a long prompt still gets a token in every step, unless the budget is for
        decoding alone. Prompts with images get no such token, and at most half of the rest if texts
        want it: one is as long as many texts. Texts of several clients share the rest equally.

        Args:
            queued: see `in_turns`.
            others: further requests wait for tokens of this step.
        """
        if int(wanted.sum()) + sum(queued.values()) <= budget:
            return wanted
        if budget <= np.count_nonzero(wanted == 1):
            return np.where(wanted == 1, 1, 0)
        texts = np.where(self.pictured(wanted), 0, wanted)
        first = np.minimum(texts, 1)
        left = budget - int(first.sum())
        least = left if others else int((texts - first).sum())
        images = _in_order(wanted - texts, left - min(least, left // 2))
        rest, left = texts - first, left - int(images.sum())
        if not queued and len(self.clients) == 1:
            return first + images + _in_order(rest, left)
        clients = [request.options.client for request in self.requests]
        return first + images + in_turns(rest, clients, queued, left)

    def certain(self) -> Column:
        """Return how many known tokens are computed once the steps in flight have landed."""
        known: Column = np.minimum(self.num_tokens - self.num_pending, self.num_computed)
        return known

    def resumes_at(self) -> Column:
        """Return the first token that a later step may have to compute.

        That is the last known token, in case the steps in flight yield nothing.
        """
        first: Column = np.minimum(self.num_tokens - self.num_pending - 1, self.num_computed)
        return first

    def allow(self, decodes: NDArray[np.bool_], most: Column | int) -> None:
        """Set `further`.

        Args:
            decodes: requests that compute just one token, and sample.
            most: tokens that each may yield in all.
        """
        left = np.minimum(self.limit - self.num_tokens, most) - 1
        np.maximum(left, 0, out=self.further)
        self.further[~decodes] = 0

    def rows_of(self, requests: list[Request]) -> Column:
        """Return the row of each of these requests; -1 if it is not running."""
        rows = {request: row for row, request in enumerate(self.requests)}
        return np.array([rows.get(request, -1) for request in requests], dtype=np.int64)

    def take_back(self, row: int, num_tokens: int) -> None:
        """Subtract tokens that a step might have yielded but did not."""
        self.num_tokens[row] -= num_tokens
        self.num_computed[row] -= num_tokens
        self.quiet = 0

    def blocks_missing(self, num_tokens: Column) -> Column:
        """Return how many more blocks each request needs for its first `num_tokens` tokens."""
        missing: Column = -((self.capacity - num_tokens) // self._block_size)
        return np.maximum(missing, 0)

    def count_quiet(self, window: int | None) -> None:
        """Set `quiet` after a step in which each request has sampled one token."""
        if self._micro_batches > 1:
            return
        self.quiet = int((self.limit - self.num_tokens).min()) - 1
        if window is not None:
            last = (self.slid + 1) * self._block_size + (window - 1)
            self.quiet = min(self.quiet, int((last - self.num_computed).min()))
        self.count_until_block()

    def count_until_block(self) -> None:
        last = np.minimum(self.capacity, self.entered + (self._block_size - 1))
        self.until_block = int((last - self.num_computed).min())

    def add(self, admitted: list[Admitted]) -> Column | None:
        """Add requests, each at its place in the order.

        Returns:
            At i the new row of the old row i, with the admitted ones as the last old rows; None
            if no row has moved.
        """
        start = len(self.requests)
        self._replace(self.requests + [new.request for new in admitted])
        for row, new in enumerate(admitted, start):
            self._columns[:, row] = (
                new.request.num_tokens,
                0,
                new.num_computed,
                new.scheduled,
                0,
                new.request.max_total_tokens,
                len(new.table) * self._block_size,
                new.entered,
                new.slid,
                1,
            )
            self.stop_ids.update(new.request.stop_ids)
            self.clients.change(new.request.options.client, 1)
        order = sorted(range(len(self)), key=lambda row: self.requests[row].order)
        if order == [*range(len(self))]:
            return None
        self._columns[:, : len(self)] = self._columns[:, order]
        self._replace([self.requests[row] for row in order])
        return np.argsort(order)

    def remove(self, row: int) -> None:
        self._leave(self.requests[row])
        self._columns[:, row : len(self) - 1] = self._columns[:, row + 1 : len(self)]
        self._replace(self.requests[:row] + self.requests[row + 1 :])

    def remove_finished(self) -> None:
        keep = [not request.finished for request in self.requests]
        if all(keep):
            return
        for request in self.requests:
            if request.finished:
                self._leave(request)
        kept = self._columns[:, : len(keep)][:, keep]
        self._columns[:, : kept.shape[1]] = kept
        self._replace(list(compress(self.requests, keep)))

    def check_integrity(self) -> None:
        """Assert that the counters agree with the requests and with each other."""
        assert self.request_ids == [r.request_id for r in self.requests]
        orders = [r.order for r in self.requests]
        assert orders == sorted(orders), "running is out of order"
        known = self.num_tokens - self.num_pending
        assert known.tolist() == [r.num_tokens for r in self.requests], "tokens were miscounted"
        assert (self.num_computed <= self.capacity).all(), "a request has no blocks for its tokens"
        assert (self.num_computed < self.num_tokens).all(), "a request ran ahead"
        stops = Counter(chain.from_iterable(request.stop_ids for request in self.requests))
        # Counters are equal if one has zeros that the other lacks; these would pile up.
        assert dict(stops) == dict(self.stop_ids), "stop tokens were miscounted"
        clients = Counter(request.options.client for request in self.requests)
        assert dict(clients) == dict(self.clients), "clients were miscounted"

    def _leave(self, request: Request) -> None:
        self.clients.change(request.options.client, -1)
        for token in request.stop_ids:
            self.stop_ids.change(token, -1)

    def _replace(self, requests: list[Request]) -> None:
        self.requests = requests
        self.request_ids = [request.request_id for request in requests]
        self.token_ids = [request.token_ids for request in requests]
        self.version = next(self.versions)
        self._view()


def _in_order(wanted: Column, budget: int) -> Column:
    """Return what each gets if each takes all that it wants while the budget lasts."""
    return np.diff(np.minimum(np.cumsum(wanted), budget), prepend=0)
