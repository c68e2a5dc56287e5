"""The life of a step: scheduled, in flight, landed."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from itertools import compress

import numpy as np

from quire.core.batch import (
    BlockRun,
    Column,
    NewSequence,
    ReadAhead,
    SchedulerOutput,
    block_columns,
    total_tokens,
)
from quire.core.request import Request
from quire.kv.manager import KVCacheManager
from quire.kv.prefix import Entered
from quire.scheduler.running import Admitted, RunningBatch
from quire.system.records import dataclass

NO_BLOCKS = block_columns([])
ALL_ROWS = slice(None)


@dataclass(slots=True)
class InFlight:
    """A step that is scheduled and has not landed. Columns have the step's order.

    Attributes:
        may_yield: int64 [B], the most tokens of each entry.
        detailed: entries that need a full `CoreOutput`, not only their token.
        entered: what the step adds to the prefix cache.
        version: of the running batch when the step was scheduled.
        rows: rows of the entries in the batch of that version; after landing, in the present one.
        departed: entries that have left the batch when the step lands.
        begun: when it was scheduled.
        prefills: entries that have sampled nothing since their admission.
        quiet: see `RunningBatch.quiet`.
    """

    step: SchedulerOutput
    requests: list[Request]
    token_ids: list[array[int]]
    may_yield: Column
    detailed: list[int]
    entered: Entered
    version: int
    rows: slice | Column
    begun: float
    prefills: list[int]
    quiet: bool
    departed: list[int] = field(default_factory=list)


class Steps:
    """Makes steps from `running`, and holds them until they land.

    Attributes:
        in_flight: oldest first.
        removed: ids that the next step tells the executor to remove.
        num_done: the number of the last landed step.
        num_tokens: the tokens that it computed.
        read_ahead: see `SchedulerOutput`; of the next step that is not quiet.
        number: the number of the last scheduled step.
    """

    def __init__(self, kv: KVCacheManager, running: RunningBatch) -> None:
        self._kv = kv
        self._running = running
        self.in_flight: deque[InFlight] = deque()
        self.removed: list[str] = []
        self.num_done = 0
        self.num_tokens = 0
        self.read_ahead: ReadAhead | None = None
        self.number = 0
        self._begun: float

    def begin(self, now: float) -> None:
        """Start the next step."""
        self.number += 1
        self._begun = now
        self._kv.begin_step()

    def count_of(self, request: Request) -> int:
        """Return how many steps in flight compute tokens of `request`."""
        return sum(request in flight.requests for flight in self.in_flight)

    def issue(
        self, num_passes: int, blocks: Sequence[BlockRun], admitted: Sequence[Admitted]
    ) -> SchedulerOutput:
        """Return the step described by `running`; its tokens count as computed now.

        Args:
            num_passes: how often the model may run for them.
            blocks: new blocks by row.
        """
        running = self._running
        scheduled, active = running.scheduled, running.scheduled > 0
        all_active = np.count_nonzero(active) == len(active)
        computed = running.num_computed.copy()
        several = bool(running.further.any())
        samples, may_yield = self._count_tokens(active)
        # A row's first token and its last possible one come in a full `CoreOutput`.
        fresh = running.awaits_first == 1
        detailed = (running.num_tokens >= running.limit) | fresh
        running.awaits_first[samples] = 0
        requests, names, tokens = running.requests, running.request_ids, running.token_ids
        new_blocks = self._block_columns(blocks)
        version, rows = running.version, ALL_ROWS
        if not all_active:
            new_blocks[0] = (np.cumsum(active) - 1)[new_blocks[0]]
            version, rows = next(running.versions), active.nonzero()[0]
            scheduled, computed, detailed = scheduled[active], computed[active], detailed[active]
            fresh, may_yield, keep = fresh[active], may_yield[active], active.tolist()
            requests, names = list(compress(requests, keep)), list(compress(names, keep))
            tokens = list(compress(tokens, keep))
        running.quiet = 0
        if not several and len(running) and np.count_nonzero(samples) == len(samples):
            running.count_quiet(self._kv.window)
        max_new_tokens = may_yield if several else None
        return self._launch(
            SchedulerOutput(
                step=self.number,
                request_ids=names,
                num_scheduled_tokens=scheduled.copy(),
                num_computed_tokens=computed,
                new_blocks=new_blocks,
                new_sequences=[self._new_sequence(new.request) for new in admitted],
                removed=[],
                total_num_scheduled_tokens=total_tokens(scheduled, max_new_tokens),
                block_copies=self._kv.take_copies(),
                max_new_tokens=max_new_tokens,
                batch_version=version,
                num_passes=num_passes if several else 1,
                read_ahead=self.read_ahead,
                moves=self._kv.moves,
            ),
            requests,
            tokens,
            may_yield,
            rows,
            detailed.nonzero()[0].tolist(),
            fresh.nonzero()[0].tolist(),
        )

    def _count_tokens(self, active: Column) -> tuple[Column, Column]:
        """Count the step's tokens as computed; return which rows sample, and how much they yield.

        Returns:
            bool [n] and int64 [n].
        """
        running = self._running
        running.num_computed += running.scheduled
        samples: Column = running.num_computed >= running.num_tokens
        samples &= active
        may_yield = samples + running.further
        running.num_computed += running.further
        self._enter_full_blocks()
        running.num_pending += may_yield
        running.num_tokens += may_yield
        return samples, may_yield

    def _enter_full_blocks(self) -> None:
        """Enter blocks into the prefix cache if this step completes them and all tokens are known.

        Tokens that this step or an earlier one has yet to sample cannot be hashed.
        """
        running = self._running
        ready = running.certain()
        for row in (ready - running.entered >= self._kv.block_size).nonzero()[0].tolist():
            running.entered[row] = self._kv.enter(running.requests[row], int(ready[row]))

    def issue_quiet(self, blocks: Sequence[BlockRun]) -> SchedulerOutput:
        """Return a step like the previous one: each request decodes one token (see `quiet`)."""
        running = self._running
        computed = running.num_computed.copy()
        running.decode()
        if running.until_block < 0:
            self._enter_full_blocks()
            running.count_until_block()
        return self._launch(
            SchedulerOutput(
                step=self.number,
                request_ids=running.request_ids,
                num_scheduled_tokens=running.ones,
                num_computed_tokens=computed,
                new_blocks=self._block_columns(blocks) if blocks else NO_BLOCKS,
                new_sequences=[],
                removed=[],
                total_num_scheduled_tokens=len(running),
                block_copies=self._kv.take_copies(),
                batch_version=running.version,
            ),
            running.requests,
            running.token_ids,
            running.ones,
            ALL_ROWS,
            [],
            [],
            quiet=True,
        )

    def land(self, step: SchedulerOutput) -> InFlight:
        """Take the oldest step out of flight, and locate its rows in the present batch."""
        flight = self.in_flight.popleft()
        assert flight.step is step, "steps must land in the order of scheduling"
        self.num_done = step.step
        self.num_tokens = step.total_num_scheduled_tokens
        running = self._running
        if flight.version == running.version:
            if flight.rows is ALL_ROWS:
                running.num_pending -= flight.may_yield
            else:
                running.num_pending[flight.rows] -= flight.may_yield
        else:
            rows = flight.rows = running.rows_of(flight.requests)
            here = rows >= 0
            flight.departed = (~here).nonzero()[0].tolist()
            running.num_pending[rows[here]] -= flight.may_yield[here]
        return flight

    def reconcile(self, flight: InFlight, came: Column) -> None:
        """Subtract the tokens that a landed step might have yielded but did not.

        The steps behind it counted them. The runner begins those steps where the sequence really
        is. The request keeps its blocks for its next tokens.

        Args:
            came: see `ModelOutput.num_sampled`.
        """
        missing = flight.may_yield - came
        running, rows = self._running, flight.rows
        for entry in missing.nonzero()[0].tolist():
            request = flight.requests[entry]
            if not request.running:
                continue
            row = entry if isinstance(rows, slice) else int(rows[entry])
            running.take_back(row, int(missing[entry]))
            if entry in flight.prefills and missing[entry] == flight.may_yield[entry]:
                self._expect_first_token(request, row)

    def _expect_first_token(self, request: Request, row: int) -> None:
        """Expect the first token from later steps, because the landed step did not sample it."""
        self._running.awaits_first[row] = 1
        for flight in self.in_flight:
            if request in flight.requests:
                entry = flight.requests.index(request)
                flight.detailed.append(entry)
                flight.prefills.append(entry)

    def check_integrity(self) -> None:
        """Assert that each request's pending tokens are those of its steps in flight."""
        running = self._running
        pending = np.zeros(len(running), dtype=np.int64)
        for flight in self.in_flight:
            rows = running.rows_of(flight.requests)
            pending[rows[rows >= 0]] += flight.may_yield[rows >= 0]  # a step names nobody twice
        assert (pending == running.num_pending).all(), "tokens in flight were miscounted"

    def _block_columns(self, blocks: Sequence[BlockRun]) -> Column:
        """Return `SchedulerOutput.new_blocks` of new blocks by row."""
        columns, states = block_columns(blocks), self._kv.states
        if states is None:
            return columns
        if not blocks:
            return np.empty((4, 0), dtype=np.int64)
        slots: list[int] = []
        for row, first, _ in blocks:  # a run is the end of its table
            slots += states.table(self._running.request_ids[row])[first:]
        return np.concatenate([columns, np.array([slots], dtype=np.int64)])

    def _new_sequence(self, request: Request) -> NewSequence:
        states = self._kv.states
        return NewSequence(
            request.request_id,
            request.token_ids[:],
            request.num_prompt_tokens,
            request.sampling_params,
            request.inputs,
            None if states is None else states.first(request.request_id),
        )

    def _launch(
        self,
        step: SchedulerOutput,
        requests: list[Request],
        token_ids: list[array[int]],
        may_yield: Column,
        rows: slice | Column,
        detailed: list[int],
        prefills: list[int],
        *,
        quiet: bool = False,
    ) -> SchedulerOutput:
        """Put a step in flight."""
        step.removed.extend(self.removed)
        self.removed.clear()
        self.in_flight.append(
            InFlight(
                step,
                requests,
                token_ids,
                may_yield,
                detailed,
                self._kv.entered,
                self._running.version,
                rows,
                self._begun,
                prefills,
                quiet,
            )
        )
        return step
