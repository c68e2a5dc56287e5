"""The token budget of each step: below the limit if prompts would slow decoding, or keep pipeline
stages waiting."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np

from quire.core.batch import Column, ModelOutput, SchedulerOutput
from quire.core.cost import StepCost
from quire.scheduler.budget import StepBudget
from quire.scheduler.chunks import LevelChunks
from quire.scheduler.state import SchedulerState


class StepSize:
    """Chooses the budget from the requests that run and wait.

    Args:
        cost: predicts a step; without it, or without a limit of the stretch, each step may use all
            of `max_num_batched_tokens`.
    """

    def __init__(self, state: SchedulerState, cost: StepCost | None) -> None:
        self._state = state
        config = state.config
        self._most = most = config.max_num_batched_tokens
        self._budget: StepBudget | None = None
        self._chunks: LevelChunks | None = None
        if cost is not None and config.max_itl_stretch is not None:
            self._budget = StepBudget(cost, max_tokens=most, max_itl_stretch=config.max_itl_stretch)
            if config.micro_batches > 1:
                self._chunks = LevelChunks(cost, config.micro_batches, most)

    def choose(self, queued: Mapping[str, int]) -> int:
        """Return the token budget of the next step.

        Args:
            queued: see `in_turns`.
        """
        if self._budget is None:
            return self._most
        state = self._state
        wanted = state.running.wanted()
        if not (state.may_admit() or (wanted > 1).any()):
            return self._most
        seats = state.config.max_num_seqs - len(state.running)
        waiting = min(len(state.waiting), seats) + len(state.loading)
        if self._chunks is not None and not (wanted == 1).any():
            return self._level_chunk(self._chunks, wanted, waiting)
        pictured = int(np.count_nonzero(state.running.pictured(wanted)))
        tokens = self._budget.tokens(
            wanted,
            state.running.num_computed,
            waiting,
            pictured,
            resumed=self._resumed(wanted, waiting),
            most_crowd=self._most_crowd(wanted),
            rivals=self._rivals(wanted, queued),
            reads=state.image_chunks.reads,
        )
        if state.config.whole_prompts and state.waiting:
            return max(tokens, state.waiting.peek().num_tokens)
        return tokens

    def _resumed(self, wanted: Column, waiting: int) -> int:
        """Return how many texts, of `waiting` and of the running ones, have had output before."""
        running = [self._state.running.requests[row] for row in (wanted > 1).nonzero()[0].tolist()]
        again = sum(r.num_output_tokens > 0 and not r.inputs.images for r in running)
        return again + min(len(self._state.waiting.resumed), waiting)

    def _most_crowd(self, wanted: Column) -> float:
        """Return how far prompts may slow decoding, as a multiple of the limit's usual value.

        A client's streams bear its own prompts: as many times the limit as it has prompts for each
        stream. Those of others count as one for each client.
        """
        running, queued = self._state.running, self._state.waiting.clients
        if len(running.clients.keys() | queued.keys()) < 2:
            return math.inf
        prompts, streams = Counter(queued), Counter[str]()
        for request, tokens in zip(running.requests, wanted.tolist(), strict=True):
            if tokens:
                (streams if tokens == 1 else prompts)[request.options.client] += 1
        if not streams:
            return math.inf
        own = min(prompts[client] / count for client, count in streams.items())
        return max(own, len(prompts) / len(streams))

    def _rivals(self, wanted: Column, queued: Mapping[str, int]) -> list[int]:
        """Return the prompt tokens of each client that has any, if there are several clients.

        If none runs, those of the next request's client are guessed, and the others' are many.
        """
        running, queue = self._state.running, self._state.waiting
        if queue.num_clients < 2:
            return []
        tokens = Counter(queued)
        for row in (wanted > 1).nonzero()[0].tolist():
            tokens[running.requests[row].options.client] += int(wanted[row])
        if not tokens and queue:
            first = queue.peek()
            count = queue.clients[first.options.client]
            return [count * first.num_tokens, *[self._most] * (len(queue.clients) - 1)]
        return [*tokens.values()]

    def _level_chunk(self, chunks: LevelChunks, wanted: Column, waiting: int) -> int:
        """Return the token budget of a step that computes prompts only."""
        running, queue = self._state.running, self._state.waiting
        rows = wanted.nonzero()[0]
        if len(rows):
            length, computed = (int(c[rows[0]]) for c in (running.num_tokens, running.num_computed))
        elif queue:
            length, computed = queue.peek().num_tokens, 0
        else:
            return self._most
        return chunks.tokens(length, computed, len(rows) + waiting)

    def seconds_left(self) -> float:
        """Return how long the scheduled step may read an image ahead; infinity without a limit."""
        if self._budget is None:
            return math.inf
        running = self._state.running  # which does not count the step's tokens as computed yet
        return self._budget.seconds_left(running.scheduled, running.num_computed)

    def observe(self, step: SchedulerOutput, result: ModelOutput) -> None:
        """Learn from the times of a step, if they are known."""
        if self._budget is not None and any(result.times):
            seconds = sum(result.times) / result.num_passes
            self._budget.observe(result.computed(step), step.num_computed_tokens, seconds)
