"""The scheduler: one token budget per step, for running requests first, then for waiting ones.

There are no prefill and decode phases. A request has tokens, some of which are computed. A step
computes as many of the rest as the budget allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import islice

from quire.core.batch import BlockRun, Column, ModelOutput, SchedulerOutput
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.cost import StepCost
from quire.core.errors import ConfigError, InvalidRequestError
from quire.core.messages import CoreOutput, SchedulerStats, StepOutputs
from quire.core.request import FinishReason, Request, RequestStatus
from quire.kv.lower_tiers import LowerTier
from quire.kv.manager import NEVER
from quire.scheduler.admission import Admission
from quire.scheduler.preemption import Preemption
from quire.scheduler.promises import Promises
from quire.scheduler.results import Results
from quire.scheduler.running import Admitted
from quire.scheduler.state import SchedulerState
from quire.scheduler.step_size import StepSize

TEACHES = 8
"""One of so many quiet steps is compared with its prediction."""


class Scheduler:
    """Owns each request from `add` until its end.

    A step may be scheduled while the previous one runs. The tokens that the previous one will
    sample count as present, although their values are unknown. If a request turns out to have
    ended there, its row in the later step is void. Only a step that fails drops the steps behind
    it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        cost: StepCost | None = None,
        lower: Sequence[LowerTier] = (),
    ) -> None:
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {config.max_num_batched_tokens}, less than "
                f"max_num_seqs, {config.max_num_seqs}: a step could not serve all sequences.",
                fix="Raise --max-num-batched-tokens or lower --max-num-seqs.",
                param="max_num_batched_tokens",
            )
        self.config = config
        self.requests: dict[str, Request] = {}
        self._state = state = SchedulerState(config, cache, cost, lower)
        self.kv, self.running, self.waiting = state.kv, state.running, state.waiting
        self._loading, self._steps, self._events = state.loading, state.steps, state.events
        self._seats = state.seats
        self._admission = Admission(state)
        self._results = Results(self.kv, self.running, self._finish)
        self._preemption = Preemption(state)
        self._step_size = StepSize(state, cost)
        self._promises = Promises(self.kv, fails=config.fails_without_blocks)
        self._depth = state.depth
        self._may_admit = state.may_admit

    # -- requests in and out -------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Put a request into the queue.

        Raises:
            InvalidRequestError: its id is in use, or the whole KV cache is too small for it.
        """
        if request.request_id in self.requests:
            raise InvalidRequestError(f"request id {request.request_id!r} is already running.")
        if self.kv.most_blocks(request.max_total_tokens) > self.kv.pool.num_blocks:
            held = self.kv.pool.num_blocks * self.kv.block_size
            raise InvalidRequestError(
                f"the request may grow to {request.max_total_tokens} tokens, "
                f"but the whole KV cache holds {held}.",
                fix="Lower max_tokens or shorten the prompt, "
                "or start the server with a larger --kv-cache-memory-bytes.",
                param="max_tokens",
            )
        self._state.image_chunks.check(request, self.config.max_num_seqs)
        self._promises.check(request)
        by_priority = self.config.policy == "priority"
        self.requests[request.request_id] = request
        self.waiting.add(request, request.options.priority if by_priority else 0)

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests and free their blocks; ignore unknown ids."""
        for request_id in request_ids:
            if request := self.requests.get(request_id):
                request.finish_reason = FinishReason.ABORT
                self._finish(request)
        self.running.remove_finished()

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache. Running requests go on, but no longer share their blocks."""
        self.kv.reset_prefix_cache()
        self.running.entered[:] = NEVER

    def has_unfinished(self) -> bool:
        """Return whether there are requests, or blocks that a last step writes to files."""
        return bool(self.requests) or self.kv.has_saves

    def has_ready(self) -> bool:
        """Return whether a further step beside those in flight may have something to compute."""
        return self._state.has_ready() if self._steps.in_flight else self.has_unfinished()

    # -- one step ------------------------------------------------------------------------

    def schedule(self, now: float, num_steps: int = 1) -> SchedulerOutput:
        """Choose the tokens of the next step and their blocks.

        Args:
            num_steps: passes of the model to take at once, if no request waits and all running
                ones decode.
        """
        running = self.running
        self._steps.begin(now)
        self._seats.now = self._events.now = now
        if running.quiet > 0 and num_steps == 1 and not self._may_admit():
            few = self._quiet_blocks()
            if few is not None:
                return self._steps.issue_quiet(few)
        victims = self._make_way()
        preempted = self._state.num_preemptions
        queued = self._admission.queued()
        budget = self._step_size.choose(queued)
        num_passes, blocks = self._schedule_running(num_steps, budget, queued)
        admitted: list[Admitted] = []
        if self._state.num_preemptions == preempted:
            budget -= int(running.scheduled.sum() + running.further.sum())
            admitted = self._admission.admit(budget, now, victims)
            for request, num_tokens in self._loading.begun(self._steps.number):
                self._events.note("load", request, num_tokens)
        if admitted:
            self._seats.note(admitted)
            self._events.admitted(admitted)
            for row, new in enumerate(admitted, len(running)):
                blocks.append((row, new.slid, new.table[new.slid :]))
            moved = running.add(admitted)
            if moved is not None:
                blocks = [(moved[row], first, table) for row, first, table in blocks]
        self._steps.read_ahead = self._state.image_chunks.take(self._step_size.seconds_left)
        step = self._steps.issue(num_passes, blocks, admitted)
        if self._depth is not None:
            running.quiet = min(running.quiet, self._depth.pause(running))
        return step

    def update(self, step: SchedulerOutput, result: ModelOutput, now: float) -> StepOutputs:
        """Apply the result of the oldest step in flight: append tokens, end requests."""
        flight = self._steps.land(step)
        self._state.image_chunks.observe(result)
        self._events.now = now
        self._events.computed(flight, result, now)
        failures: list[CoreOutput] = []
        for request in self._loading.end(step.step, result.failed_loads, result.pending_loads):
            self._events.note("load_failed", request)
            self.waiting.push(request)
            if (end := self._promises.broken(request)) is not None:
                self._finish(request)
                failures.append(end)
        teaches = not flight.quiet or step.step % TEACHES == 0  # quiet steps are alike
        if teaches and not result.encoded_tokens:  # the tower's time is no text's
            self._step_size.observe(step, result)
        if (tier_cost := self._state.tier_cost) is not None:
            tier_cost.observe_step(step.block_copies, result)
        if self.kv.tier is not None and result.unsaved:
            self.kv.tier.unsaved = result.unsaved
        outputs = StepOutputs(failures, None, now)
        if flight.requests:
            before = len(self.requests)
            if self._depth is not None:
                if teaches:
                    self._depth.observe(flight, result, now)
                else:
                    self._depth.rest(now)
            came = result.num_sampled()
            self._seats.note_tokens(flight, came, now)
            self._results.take_in(flight, result, came, outputs)
            self._steps.reconcile(flight, came)
            if len(self.requests) < before:
                self.running.remove_finished()
        self._events.attach(outputs)
        return outputs

    def repair(
        self, step: SchedulerOutput, result: ModelOutput, lost: Set[str], now: float
    ) -> StepOutputs:
        """Do what `update` does, for a step that failed and was then computed in parts.

        Steps behind it are dropped; then all requests wait again.

        Args:
            lost: requests that were not computed. They wait again.
        """
        self.kv.forget(self._steps.in_flight[0].entered)
        if result.errors:  # requests that load in this step may share the failed ones' blocks
            self._preemption.undo_loads(step, failed=False)
        outputs = self.update(step, result, now)
        self._preemption.drop_in_flight()
        self._preemption.preempt_behind(lost)
        self._events.attach(outputs)
        return outputs

    def fail(self, step: SchedulerOutput, reason: str, now: float) -> StepOutputs:
        """End all requests of the oldest step in flight, which could not be computed.

        Steps behind it are dropped; then all other requests wait again.
        """
        flight = self._steps.land(step)
        self._events.now = now
        self._preemption.undo_copies(step, failed=True)
        self.kv.forget(flight.entered)
        outputs = StepOutputs([], None, now)
        for request in flight.requests:
            if not request.finished:
                outputs.outputs.append(self._results.fail(request, reason))
        self.running.remove_finished()
        self._preemption.drop_in_flight()
        self._events.attach(outputs)
        return outputs

    # -- parts of `schedule` ---------------------------------------------------------------

    def _make_way(self) -> list[Request]:
        """Preempt requests of lower priority, or of a client that holds many seats."""
        victims: list[Request] = []
        if self.config.policy == "priority":
            running = self.running.requests
            victims = running[len(running) - self._admission.num_victims() :]
        victims = victims or self._seats.share(self._admission)
        for victim in reversed(victims):
            self._preemption.preempt(self.running.requests.index(victim))
        return victims

    def _schedule_running(
        self, num_steps: int, budget: int, queued: Mapping[str, int]
    ) -> tuple[int, list[BlockRun]]:
        """Fill `running.scheduled` and `further`; return the passes, and the new blocks by row."""
        running = self.running
        if self.kv.window is not None:
            self._slide(self.kv.window)
        while True:
            wanted = running.wanted()
            others = len(self.waiting) > 0 and len(running) < self.config.max_num_seqs
            running.scheduled[:] = running.share(wanted, budget, queued, others=others)
            self._state.image_chunks.level(
                running.requests, wanted, running.num_computed, running.scheduled
            )
            num_passes = self._choose_further(wanted, num_steps, budget)
            ends = running.num_computed + running.scheduled
            blocks = self._allocate(running.blocks_missing(ends + running.further))
            if blocks is None:
                running.further[:] = 0
                blocks = self._allocate(running.blocks_missing(ends))
            if blocks is not None:
                return num_passes, blocks
            self._preemption.preempt(self._seats.last_row())

    def _quiet_blocks(self) -> list[BlockRun] | None:
        """Return the blocks for one more token of each request; None if too few are free."""
        if self.running.until_block > 0:
            return []
        return self._allocate(self.running.blocks_missing(self.running.num_computed + 1))

    def _allocate(self, missing: Column) -> list[BlockRun] | None:
        """Give requests their missing blocks, and return them by row; None if too few are free."""
        rows = missing.nonzero()[0]
        counts = missing[rows]
        total = int(counts.sum())
        if total > self.kv.pool.num_free:
            return None
        self.running.capacity[rows] += counts * self.kv.block_size
        new = iter(self.kv.pool.allocate(total) if total else ())
        blocks: list[BlockRun] = []
        for row, number in zip(rows.tolist(), counts.tolist(), strict=True):
            part = list(islice(new, number))
            blocks.append((row, self.kv.extend(self.running.requests[row], part), part))
        return blocks

    def _choose_further(self, wanted: Column, num_steps: int, budget: int) -> int:
        """Set the tokens that each request may yield after its first; return the passes."""
        running = self.running
        decodes = (wanted == 1) & (running.scheduled == 1)
        prompts = bool((wanted > 1).any())
        waiting = self._state.num_waiting > 0 or len(self._loading) > 0
        num_passes = 1 if waiting or prompts else num_steps
        most: Column | int = num_passes
        if self._depth is not None:
            mixed = prompts or self._may_admit()
            drafts = self._depth.choose(running, decodes, budget, mixed=mixed)
            most = num_passes * (1 + drafts)
        running.allow(decodes, most)
        return num_passes

    def _slide(self, window: int) -> None:
        """Free the blocks that left the sliding window."""
        running = self.running
        first = (running.resumes_at() - window + 1) // self.kv.block_size
        for row in (first > running.slid).nonzero()[0].tolist():
            begin, end = int(running.slid[row]), int(first[row])
            self.kv.slide(running.requests[row], begin, end)
            running.slid[row] = end

    def _finish(self, request: Request) -> None:
        """Free what a request holds. Callers set its `finish_reason` and clean up `running`."""
        previous, request.status = request.status, RequestStatus.FINISHED
        del self.requests[request.request_id]
        self.kv.drop_swapped(request)
        if previous is RequestStatus.RUNNING:
            self.kv.free(request)
            self._steps.removed.append(request.request_id)
        elif previous is RequestStatus.LOADING:
            self._loading.abort(request)
        elif not self._state.unread.forget(request):
            self.waiting.forget(request)

    def stats(self) -> SchedulerStats:
        return self._state.stats()

    def check_integrity(self) -> None:
        """Assert all invariants that hold between steps; for tests, simulation and idle time."""
        self._state.check_integrity(self.requests)
