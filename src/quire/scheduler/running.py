"""The running requests, their numbers in arrays: a step costs array operations, not objects."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import compress, count, pairwise

import numpy as np

from quire.core.batch import Column
from quire.core.request import Request


@dataclass(slots=True)
class Admitted:
    """A request that begins to run, with the numbers it begins with (see `RunningBatch`)."""

    request: Request
    table: list[int]
    num_computed: int
    scheduled: int
    entered: int
    slid: int


class RunningBatch:
    """Requests in line order; the last one is the one to preempt.

    Attributes:
        requests, request_ids, token_ids: lists in that order. They are replaced, never changed,
            when anybody comes or goes: a step that was made with them may keep them.
        versions: numbers that no batch has had yet.
        version: changes when anybody comes or goes.
        stop_ids: tokens that may end anybody here, with how many they may end.
        quiet: steps to come in which everyone decodes one token and nothing else happens:
            nobody needs a block, fills one or reaches its limit, if nobody comes or goes.

    Numbers, int64 [n], views that hold until anybody comes or goes:

        num_tokens: tokens of the request, with all that steps in flight may yield.
        num_pending: how many those are.
        num_computed: computed, once the steps in flight have yielded them.
        scheduled: how many the step that is being made computes before it samples.
        limit: the number of tokens at which it ends.
        capacity: tokens that its blocks hold.
        entered: tokens in blocks that are in the prefix cache.
        slid: blocks at the start of its table that were given back: no window reaches them.
        untold: 1 until the step that samples its first token since it was admitted.
    """

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self._block_size = block_size
        self._columns = np.zeros((9, max_num_seqs), dtype=np.int64)
        self.requests: list[Request] = []
        self.request_ids: list[str] = []
        self.token_ids: list[array[int]] = []
        self.stop_ids: Counter[int] = Counter()
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
            self.limit,
            self.capacity,
            self.entered,
            self.slid,
            self.untold,
        ) = self._columns[:, : len(self.requests)]
        self.quiet = 0

    def wanted(self) -> Column:
        """Tokens that each request has to compute; none where its last one is being sampled."""
        wanted: Column = self.num_tokens - self.num_computed
        wanted[self.num_tokens >= self.limit] = 0
        return wanted

    @staticmethod
    def share(wanted: Column, budget: int) -> Column:
        """Tokens of each request: one for whoever wants any, the rest of the budget in line order.

        Whoever is behind a long prompt so still gets a token in every step.
        """
        if int(wanted.sum()) <= budget:
            return wanted
        first = np.minimum(wanted, 1)
        more = np.minimum(np.cumsum(wanted - first), budget - int(first.sum()))
        return first + np.diff(more, prepend=0)

    def certain(self) -> Column:
        """Tokens that are known and computed, once the steps in flight are, whatever they yield."""
        known: Column = np.minimum(self.num_tokens - self.num_pending, self.num_computed)
        return known

    def resumes_at(self) -> Column:
        """The first token that the next step may have to compute: the last one that is known, if
        the steps in flight yield nothing."""
        first: Column = np.minimum(self.num_tokens - self.num_pending - 1, self.num_computed)
        return first

    def further_tokens(self, wanted: Column, num_tokens: int) -> Column | None:
        """The tokens that a step may yield of each request after its first, if it may yield
        `num_tokens`; None unless everyone decodes."""
        if wanted.max() != 1:
            return None
        left: Column = np.minimum(self.limit - self.num_tokens, num_tokens)
        return np.maximum(left - 1, 0, out=left)

    def rows_of(self, requests: list[Request]) -> Column:
        """The row of each of these requests, -1 of those that are not here."""
        rows = {request: row for row, request in enumerate(self.requests)}
        return np.array([rows.get(request, -1) for request in requests], dtype=np.int64)

    def take_back(self, row: int, num_tokens: int) -> None:
        """A step yielded so many tokens less than it might have."""
        self.num_tokens[row] -= num_tokens
        self.num_computed[row] -= num_tokens
        self.quiet = 0

    def blocks_missing(self, num_tokens: Column) -> Column:
        """Blocks that each request needs for its first `num_tokens` tokens beside its own."""
        missing: Column = -((self.capacity - num_tokens) // self._block_size)
        return np.maximum(missing, 0)

    def count_quiet(self, window: int | None) -> None:
        """Set `quiet` after a step in which everyone has sampled a token."""
        size = self._block_size
        last = np.minimum(self.capacity, self.entered + (size - 1))
        if window is not None:
            last = np.minimum(last, (self.slid + 1) * size + (window - 1))
        until_end = int((self.limit - self.num_tokens).min()) - 1
        self.quiet = min(until_end, int((last - self.num_computed).min()))

    def add(self, admitted: list[Admitted]) -> Column | None:
        """Take in requests, each to its place in line.

        Returns:
            Where everyone has gone: at i the new row of what was row i, newcomers last; None
            if nobody has moved.
        """
        start = len(self.requests)
        self._replace(self.requests + [new.request for new in admitted])
        for row, new in enumerate(admitted, start):
            self._columns[:, row] = (
                new.request.num_tokens,
                0,
                new.num_computed,
                new.scheduled,
                new.request.max_total_tokens,
                len(new.table) * self._block_size,
                new.entered,
                new.slid,
                1,
            )
            self.stop_ids.update(new.request.stop_ids)
        line = self.requests[max(start - 1, 0) :]
        if all(ahead.order < behind.order for ahead, behind in pairwise(line)):
            return None
        order = sorted(range(len(self)), key=lambda row: self.requests[row].order)
        self._columns[:, : len(self)] = self._columns[:, order]
        self._replace([self.requests[row] for row in order])
        return np.argsort(order)

    def pop(self) -> Request:
        """Take out the last in line."""
        request = self.requests[-1]
        self._leave(request)
        self._replace(self.requests[:-1])
        return request

    def remove_finished(self) -> None:
        """Drop all who have finished."""
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
        """Assert that the numbers agree with the requests and with each other."""
        assert self.request_ids == [r.request_id for r in self.requests]
        orders = [r.order for r in self.requests]
        assert orders == sorted(orders), "running is out of order"
        known = self.num_tokens - self.num_pending
        assert known.tolist() == [r.num_tokens for r in self.requests], "tokens were miscounted"
        assert (self.num_computed <= self.capacity).all(), "a request has no blocks for its tokens"
        assert (self.num_computed < self.num_tokens).all(), "a request ran ahead"
        stops: Counter[int] = Counter()
        for request in self.requests:
            stops.update(request.stop_ids)
        assert stops == self.stop_ids, "stop tokens were miscounted"

    def _leave(self, request: Request) -> None:
        for token in request.stop_ids:
            self.stop_ids[token] -= 1
            if not self.stop_ids[token]:
                del self.stop_ids[token]

    def _replace(self, requests: list[Request]) -> None:
        self.requests = requests
        self.request_ids = [request.request_id for request in requests]
        self.token_ids = [request.token_ids for request in requests]
        self.version = next(self.versions)
        self._view()
