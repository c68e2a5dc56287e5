"""Steps: made, in flight, and landed."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from quire.core.batch import (
    BlockCopies,
    BlockRun,
    NewSequence,
    SchedulerOutput,
    block_columns,
)
from quire.core.request import Request
from quire.kv.manager import KVCacheManager
from quire.scheduler.running import Admitted, RunningBatch

NO_BLOCKS = block_columns([])
MAX_IN_FLIGHT = 2
"""Steps that are scheduled and not taken in: the one that runs, and the one behind it."""


@dataclass(slots=True)
class InFlight:
    """A step that has been scheduled and not taken in yet, its columns in the step's order.

    Attributes:
        told: entries of which there will be more to say than their token.
        entered: blocks that entered the prefix cache for it: wrong, should it fail.
        num_departed: how many requests had stopped running when it was scheduled.
        begun: when it was scheduled.
        prefills: entries that have sampled nothing since they were admitted.
    """

    step: SchedulerOutput
    requests: list[Request]
    token_ids: list[array[int]]
    told: list[int]
    entered: list[int]
    num_departed: int
    begun: float
    prefills: list[int]


class Steps:
    """Makes steps of what `running` says, and keeps them until they are taken in.

    Attributes:
        in_flight: oldest first.
        removed: ids that the next step tells the executor to forget.
        num_done: the number of the step taken in last.
        num_tokens: how many tokens it computed.
    """

    def __init__(self, kv: KVCacheManager, running: RunningBatch) -> None:
        self._kv = kv
        self._running = running
        self.in_flight: deque[InFlight] = deque()
        self.removed: list[str] = []
        self.num_done = 0
        self.num_tokens = 0
        self.number = 0
        self._begun = 0.0

    def begin(self, now: float) -> None:
        """Begin to make step `number`."""
        assert len(self.in_flight) < MAX_IN_FLIGHT, "take in a step before scheduling another"
        self.number += 1
        self._begun = now
        self._kv.entered = []

    def issue(
        self, num_steps: int, blocks: Sequence[BlockRun], admitted: Sequence[Admitted]
    ) -> SchedulerOutput:
        """The step that `running.scheduled` says; its tokens count as computed from now."""
        running = self._running
        scheduled = running.scheduled
        active = scheduled > 0
        everyone = np.count_nonzero(active) == len(active)
        computed = running.num_computed.copy()
        running.num_computed += scheduled if num_steps == 1 else scheduled * num_steps
        self._enter_full_blocks(num_steps)
        samples = running.num_computed >= running.num_tokens
        if not everyone:
            samples &= active
        np.multiply(samples, num_steps, out=running.num_pending)
        running.num_tokens += running.num_pending
        # Who gets a full `CoreOutput`: with the first token, and with the last one possible.
        fresh = running.untold > 0
        told = (running.num_tokens >= running.limit) | fresh
        told &= samples
        running.untold[samples] = 0
        requests, names, tokens = running.requests, running.request_ids, running.token_ids
        new_blocks = block_columns(blocks)
        if not everyone:
            new_blocks[0] = (np.cumsum(active) - 1)[new_blocks[0]]
            scheduled, computed, told = scheduled[active], computed[active], told[active]
            fresh, keep = fresh[active], active.tolist()
            requests, names = list(compress(requests, keep)), list(compress(names, keep))
            tokens = list(compress(tokens, keep))
        running.quiet = 0
        if num_steps == 1 and len(running) and np.count_nonzero(samples) == len(samples):
            running.count_quiet(self._kv.window)
        return self._launch(
            SchedulerOutput(
                step=self.number,
                request_ids=names,
                num_scheduled_tokens=scheduled.copy(),
                num_computed_tokens=computed,
                new_blocks=new_blocks,
                new_sequences=[_new_sequence(new.request) for new in admitted],
                removed=[],
                total_num_scheduled_tokens=int(scheduled.sum()) * num_steps,
                num_steps=num_steps,
                block_copies=self._copies(),
            ),
            requests,
            tokens,
            told.nonzero()[0].tolist(),
            fresh.nonzero()[0].tolist(),
        )

    def _enter_full_blocks(self, num_steps: int) -> None:
        """Enter blocks whose tokens are known and computed once this step is.

        Tokens that are still to be sampled, here or by the step ahead, are in no block's hash.
        """
        running = self._running
        ready = running.num_computed
        if self.in_flight:
            ready = np.minimum(ready, running.num_tokens - running.num_pending)
        elif num_steps > 1:
            ready = np.minimum(ready, running.num_tokens)
        for row in (ready - running.entered >= self._kv.block_size).nonzero()[0].tolist():
            running.entered[row] = self._kv.enter(running.requests[row], int(ready[row]))

    def issue_quiet(self) -> SchedulerOutput:
        """`issue` for a step of which `running` knows that it is like the one before."""
        running = self._running
        running.quiet -= 1
        computed = running.num_computed.copy()
        running.num_computed += 1
        running.num_tokens += 1
        return self._launch(
            SchedulerOutput(
                step=self.number,
                request_ids=running.request_ids,
                num_scheduled_tokens=np.ones_like(computed),
                num_computed_tokens=computed,
                new_blocks=NO_BLOCKS,
                new_sequences=[],
                removed=[],
                total_num_scheduled_tokens=len(running),
                block_copies=self._copies(),
            ),
            running.requests,
            running.token_ids,
            [],
            [],
        )

    def land(self, step: SchedulerOutput) -> InFlight:
        """Take the oldest step out of flight."""
        flight = self.in_flight.popleft()
        assert flight.step is step, "steps are taken in as they were scheduled"
        self.num_done = step.step
        self.num_tokens = step.total_num_scheduled_tokens
        return flight

    def _copies(self) -> BlockCopies | None:
        return self._kv.tier.take_copies() if self._kv.tier else None

    def _launch(
        self,
        step: SchedulerOutput,
        requests: list[Request],
        token_ids: list[array[int]],
        told: list[int],
        prefills: list[int],
    ) -> SchedulerOutput:
        """Note that a step is in flight."""
        step.removed.extend(self.removed)
        self.removed.clear()
        self.in_flight.append(
            InFlight(
                step,
                requests,
                token_ids,
                told,
                self._kv.entered,
                self._running.num_departed,
                self._begun,
                prefills,
            )
        )
        return step


def _new_sequence(request: Request) -> NewSequence:
    return NewSequence(
        request.request_id,
        request.token_ids[:],
        request.num_prompt_tokens,
        request.sampling_params,
        request.options,
        request.eos_token_ids,
        request.second_text,
        request.prompt_embeds,
    )
