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
    """Seconds of a request without its prompt.

    Attributes:
        first: of the steps before it.
        per_token: of decoding one token of its answer beside the others.
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
        """Predict the seconds of another request without its prompt."""
        others, context = self.unfinished, self._context
        rows = others + 1
        context += context // others if others else 0  # the new one is like the others
        step = self._cost.seconds(rows, rows, context + rows, context + rows)
        first = 0.0
        if others:
            tokens = self._tokens + others - self._queued
            first = self._cost.seconds(tokens, others, self._context, self._pairs + self._context)
        rounds = max(1.0, rows / self._rows)
        return Wait(first, rounds * step)

    def _count(self, sent: Sent, sign: int) -> None:
        self._queued += sign * bool(sent.new_tokens)
        self._tokens += sign * sent.new_tokens
        self._pairs += sign * sent.pairs
