"""Chooses how many drafts each request may have in a step.

A draft costs a row of the step and yields a token only if it is accepted, with all drafts before
it. So the best number depends on the acceptance of each position, of each request, and on the time
that further rows take: almost none while a step reads weights, a full share once it is bound by
arithmetic. Both are predicted from earlier steps, and so is the time of drafting, which grows with
the longest run of drafts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from operator import add

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import Column, ModelOutput
from quire.core.config import LOGITS_ROWS, SchedulerConfig, SpeculativeConfig
from quire.core.cost import StepCost
from quire.core.messages import SpecDecodingStats
from quire.core.request import Request
from quire.scheduler.budget import Scales
from quire.scheduler.running import RunningBatch
from quire.scheduler.steps import InFlight

PRIOR = (4.0, 3.0)
"""Drafts of each position, and accepted ones, before anything was measured: try it."""
MEMORY = 256.0
"""Drafts of a position after which older ones count half."""
OWN_MEMORY = 32
"""The same for the drafts of one request."""
OWN_PRIOR = 4.0
"""Drafts of all requests that count in the rate of each."""
INTERVAL = 8
"""Steps between two choices for the same batch."""
TRIAL = 4
"""The same, if no recent step had as many tokens."""
STALE = 128
"""Steps without a measurement after which a number of tokens is tried again. One slow step, such as
the first, may have been enough to avoid it."""
PAUSE = 31
"""Steps between two choices for the same batch behind a choice of no drafts."""
PROBE = 8
"""Choices without drafts until one draft is tried again."""
WEIGHT = 0.125
"""Weight of a new measurement in the mean times of drafting, and between two steps."""
GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
"""Numbers of drafts in a step whose speed is predicted."""


class Depth:
    """Chooses numbers of drafts, from its arguments and past steps only.

    Args:
        cost: predicts a step's seconds; the scale is learned. None always drafts as many as it may.

    Attributes:
        stats: counters since the start; replaced, never changed.
    """

    def __init__(
        self, limits: SchedulerConfig, config: SpeculativeConfig, cost: StepCost | None
    ) -> None:
        self._rows = max(limits.max_num_seqs, LOGITS_ROWS)
        self.stats = SpecDecodingStats(0, 0, 0, [0] * config.num_speculative_tokens)
        self._most = config.num_speculative_tokens
        self._by_batch_size = config.num_speculative_tokens_per_batch_size
        self._cost = None if self._by_batch_size else cost
        self._scales = Scales(STALE)
        self._draft_seconds = 0.0
        self._overhead = 0.0
        self._landed = math.inf  # no pause comes before the first step
        self._tested = [PRIOR[0]] * self._most
        self._right = [PRIOR[1]] * self._most
        self._without = 0
        self._version: int | None = None
        # For this version of the batch:
        self._chosen: Column
        self._calls = 0
        self._idle: int | None = None  # the version of the batch that decodes without drafts

    def choose(
        self, running: RunningBatch, decodes: NDArray[np.bool_], budget: int, *, mixed: bool
    ) -> Column:
        """Return the most drafts of each request, int64 [n].

        Args:
            decodes: requests that compute just one token, and sample.
            budget: tokens that the step may have.
            mixed: prompts run or wait; drafts must not starve them.
        """
        room = budget - int(running.scheduled.sum())
        room = min(room // 2 if mixed else room, self._rows - len(running))
        left: Column = np.minimum(running.limit - running.num_tokens - 1, self._most)
        np.maximum(left, 0, out=left)
        left *= decodes
        self._idle = None
        if not left.any():
            return left
        chosen: Column | int
        if self._cost is None:
            chosen = self._fixed(decodes)
        else:
            if running.version != self._version or self._calls >= INTERVAL:
                self._version = running.version
                self._chosen = self._predict(self._cost, running, left, room)
                self._calls = self._begun(running)
                self._probe(left)
            self._calls += 1
            chosen = self._chosen
        drafts: Column = np.minimum(chosen, left)
        if not drafts.any() and decodes.all():
            self._idle = running.version
        return drafts if int(drafts.sum()) <= room else _within(drafts, room)

    def pause(self, running: RunningBatch) -> int:
        """Return the steps for which a choice of no drafts holds; 0 if it was another choice."""
        return PAUSE if running.version == self._idle else 0

    def rest(self, now: float) -> None:
        """Count a step of a pause, which landed at `now`."""
        self._landed = now
        self._calls += 1

    def _fixed(self, decodes: NDArray[np.bool_]) -> int:
        """Return the number of drafts of each request that does not depend on times."""
        if not self._by_batch_size:
            return self._most
        number = int(np.count_nonzero(decodes))
        return next((k for first, last, k in self._by_batch_size if first <= number <= last), 0)

    def observe(self, flight: InFlight, result: ModelOutput, now: float) -> None:
        """Learn from a step that has landed at `now`."""
        seconds = sum(result.times)
        # After a pause the time since the last step is no overhead.
        besides = min(max(now - self._landed - seconds, 0.0), seconds)
        self._overhead += WEIGHT * (besides - self._overhead)
        self._landed = now
        drafted, accepted = result.drafted, result.accepted
        self._observe_seconds(flight, result, 0 if drafted is None else int(drafted.sum()))
        if drafted is None:
            return
        assert accepted is not None
        if result.num_passes == 1:
            each = result.draft_seconds / max(int(drafted.max()), 1)
            self._draft_seconds += WEIGHT * (each - self._draft_seconds)
        counted = self.stats
        hits = [*counted.num_accepted_tokens_per_pos]
        sums: tuple[int, ...] = (0, 0, 0)
        columns = zip(flight.requests, drafted.T.tolist(), accepted.T.tolist(), strict=True)
        for request, drafts, right in columns:
            if not request.finished:  # else no one receives their tokens
                sums = tuple(map(add, sums, self._observe_request(request, drafts, right, hits)))
        self.stats = SpecDecodingStats(
            counted.num_drafts + sums[0],
            counted.num_draft_tokens + sums[1],
            counted.num_accepted_tokens + sums[2],
            hits,
            counted.draft_seconds + result.draft_seconds,
        )
        for position, tested in enumerate(self._tested):
            if tested > MEMORY:
                self._tested[position] *= 0.5
                self._right[position] *= 0.5

    def _observe_request(
        self, request: Request, drafts: list[int], right: list[int], hits: list[int]
    ) -> tuple[int, int, int]:
        """Learn from the drafts of each pass and the right ones; add these to `hits` by position.

        Returns:
            Passes with drafts, drafts, and right drafts.
        """
        for made, found in zip(drafts, right, strict=True):
            tested = min(found + 1, made)
            request.drafts_tested += tested
            for position in range(tested):
                self._tested[position] += 1
            for position in range(found):
                self._right[position] += 1
                hits[position] += 1
        number, accepted = sum(drafts), sum(right)
        request.drafts_right += accepted
        if request.drafts_tested > OWN_MEMORY:
            request.drafts_tested //= 2
            request.drafts_right //= 2
        request.num_draft_tokens += number
        request.num_accepted_tokens += accepted
        return len(drafts) - drafts.count(0), number, accepted

    def _observe_seconds(self, flight: InFlight, result: ModelOutput, drafts: int) -> None:
        seconds = sum(result.times) - result.draft_seconds
        if self._cost is None or seconds <= 0.0 or result.num_passes > 1:
            return
        step = flight.step
        tokens = int(step.num_scheduled_tokens.sum())
        context = tokens + int(step.num_computed_tokens.sum())
        predicted = _seconds(self._cost, tokens, len(step.request_ids), context, drafts)
        self._scales.observe(tokens + drafts, seconds / predicted)

    def _predict(self, cost: StepCost, running: RunningBatch, left: Column, room: int) -> Column:
        """Return the numbers of drafts with the most expected tokens per second."""
        gains = np.cumprod(self._rates(running), axis=1)
        gains[np.arange(self._most) >= left[:, None]] = 0.0
        flat = gains.ravel()
        order = np.argsort(-flat, kind="stable")
        total = np.cumsum(flat[order])
        most = min(room, int(np.count_nonzero(flat)))
        tokens = int(running.scheduled.sum())
        number, context = len(running), tokens + int(running.num_computed.sum())
        decodes = int(np.count_nonzero(running.scheduled))
        deepest = np.maximum.accumulate(order % self._most) + 1
        seconds = self._step_seconds(cost, tokens, number, context, 0)
        best, fastest = 0, decodes / (seconds + self._overhead)
        for drafts in (*GRID[: bisect_left(GRID, most)], most):
            yields = decodes + float(total[drafts - 1])
            seconds = self._step_seconds(cost, tokens, number, context, drafts)
            seconds += self._overhead + self._draft_seconds * float(deepest[drafts - 1])
            speed = yields / seconds
            if speed > fastest:
                best, fastest = drafts, speed
        return np.bincount(order[:best] // self._most, minlength=number)

    def _rates(self, running: RunningBatch) -> NDArray[np.float64]:
        """Return the probability that a draft is right if those before it are, [n, positions]."""
        rates = np.divide(self._right, self._tested)
        mean = sum(self._right) / sum(self._tested)
        tested = [request.drafts_tested + OWN_PRIOR for request in running.requests]
        right = [request.drafts_right + OWN_PRIOR * mean for request in running.requests]
        own = np.divide(right, tested)
        scaled = rates * (own / mean)[:, None] if mean else np.zeros((len(own), self._most))
        capped: NDArray[np.float64] = np.minimum(scaled, 1.0)
        return capped

    def _step_seconds(
        self, cost: StepCost, tokens: int, number: int, context: int, drafts: int
    ) -> float:
        known = self._scales.count(tokens + drafts)
        scale = self._scales.at(tokens + drafts if known else tokens) or 1.0
        return scale * _seconds(cost, tokens, number, context, drafts)

    def _begun(self, running: RunningBatch) -> int:
        """Return how many of its `INTERVAL` steps a new choice leaves out."""
        drafts = int(self._chosen.sum())
        known = self._scales.count(int(running.scheduled.sum()) + drafts)
        return INTERVAL - TRIAL if drafts and not known else 0

    def _probe(self, left: Column) -> None:
        """Now and then try a draft although none is predicted to pay."""
        if self._chosen.any():
            self._without = 0
            return
        self._without += 1
        if self._without % PROBE == 0:
            able = left.nonzero()[0]
            self._chosen[able[self._without // PROBE % len(able)]] = 1


def _seconds(cost: StepCost, tokens: int, number: int, context: int, drafts: int) -> float:
    """Predict a step; each draft is a row to sample, with the mean context."""
    attended = context + drafts * context // number
    return cost.seconds(tokens + drafts, number + drafts, context, attended)


def _within(wanted: Column, room: int) -> Column:
    """Return `wanted`, cut so that its sum is at most `room`."""
    before = np.cumsum(wanted) - wanted
    cut: Column = np.clip(room - before, 0, wanted)
    return cut
