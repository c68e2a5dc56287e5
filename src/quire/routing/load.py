"""A replica's queue, and how long a new request would wait in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.core.cost import StepCost
from quire.core.messages import SchedulerStats
from quire.system.records import dataclass


@dataclass(slots=True)
class Sent:
    """A request at a replica.

    Attributes:
        replica: its index.
        num_tokens: of the prompt.
        new_tokens: prompt tokens that are still to be computed; 0 once it has an output.
        expected: hashes of the blocks that it will compute (see `CacheMap.expect`).
        answer_tokens: tokens of its answer so far.
    """

    replica: int
    num_tokens: int
    new_tokens: int
    expected: Sequence[bytes]
    answer_tokens: int = 0

    @property
    def pairs(self) -> int:
        """Return the pairs of a token to compute and one that it attends to."""
        new = self.new_tokens
        return new * (self.num_tokens - new) + new * (new + 1) // 2


class Wait(NamedTuple):
    """Seconds that a request takes and costs, without its prompt.

    Attributes:
        first: of the steps before it.
        per_token: for each token of an answer: waiting for a row if none is free, and what
            decoding it adds to the answers beside it.
    """

    first: float
    per_token: float

    def seconds(self, answer_tokens: float) -> float:
        """Return the sum for an answer of this mean length."""
        return self.first + answer_tokens * self.per_token


class Load:
    """Sums over the requests at one replica.

    Args:
        cost: predicts a step's seconds.
        max_num_seqs: rows of the replica's batch.

    Attributes:
        unfinished: number of requests at the replica.
    """

    def __init__(self, cost: StepCost, max_num_seqs: int) -> None:
        self.unfinished = 0
        self._cost = cost
        self._rows = float(max_num_seqs)
        self._max_rows = max_num_seqs
        self._tokens = self._pairs = self._context = self._queued = 0

    def add(self, sent: Sent) -> None:
        self.unfinished += 1
        self._context += sent.num_tokens
        self._count(sent, 1)

    def remove(self, sent: Sent) -> None:
        self.unfinished -= 1
        self._context -= sent.num_tokens
        self._count(sent, -1)

    def progress(self, sent: Sent, new_tokens: int) -> None:
        """Note that only `new_tokens` prompt tokens of a request are left."""
        self._count(sent, -1)
        sent.new_tokens = new_tokens
        self._count(sent, 1)

    def note(self, stats: SchedulerStats) -> None:
        """Take the replica's state after a step: how many rows its KV cache has room for."""
        used, running = stats.kv_blocks_used, stats.num_running
        room = running * stats.kv_blocks_total / used if used else self._max_rows
        self._rows = min(self._max_rows, max(1.0, room))

    def wait(self) -> Wait:
        """Predict the seconds of another request without its prompt; it is like the others."""
        others, context = self.unfinished, self._context
        if not others:
            return Wait(0.0, 0.0)
        tokens = self._tokens + others - self._queued
        first = self._cost.seconds(tokens, others, context, self._pairs + context)
        rows = others + 1
        step = self._decode(others, context)
        longer = self._decode(rows, context + context // others)
        added = 0.5 * others * (longer - step)  # on average, half of their answers is left
        return Wait(first, added + max(0.0, rows / self._rows - 1.0) * longer)

    def _decode(self, rows: int, context: int) -> float:
        return self._cost.seconds(rows, rows, context + rows, context + rows)

    def _count(self, sent: Sent, sign: int) -> None:
        self._queued += sign * bool(sent.new_tokens)
        self._tokens += sign * sent.new_tokens
        self._pairs += sign * sent.pairs
