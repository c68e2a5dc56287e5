"""The scheduler: one token budget a step, given to running requests first, then to waiting ones.

There are no prefill and decode phases. A request whose last token is not computed yet has
tokens to compute, one or thousands; a step computes as many of them as the budget holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from itertools import count

from quire.core.batch import (
    BlockRun,
    Column,
    ModelOutput,
    SchedulerOutput,
)
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.cost import StepCost
from quire.core.errors import ConfigError, InvalidRequestError
from quire.core.messages import SchedulerStats, StepOutputs
from quire.core.request import FinishReason, Request, RequestStatus
from quire.kv.manager import NEVER, KVCacheManager
from quire.scheduler.admission import Admission
from quire.scheduler.budget import StepBudget
from quire.scheduler.events import Events
from quire.scheduler.loading import Loading
from quire.scheduler.queue import LongestPrefixQueue, WaitingQueue
from quire.scheduler.results import Results
from quire.scheduler.running import Admitted, RunningBatch
from quire.scheduler.steps import Steps
from quire.scheduler.tier_cost import TierCost


class Scheduler:
    """Owns every request from `add` until it has finished.

    A step may be scheduled while the one ahead of it runs: the tokens that one samples count as
    there, though nobody knows them yet. What comes to light when it is taken in (an end, an
    error, an abort) makes the request's row in the step behind it void, and nothing else. Only
    where the step could not be computed, the one behind it is dropped.
    """

    def __init__(
        self, config: SchedulerConfig, cache: CacheConfig, cost: StepCost | None = None
    ) -> None:
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {config.max_num_batched_tokens}, less than "
                f"max_num_seqs, {config.max_num_seqs}: a step could not serve everyone.",
                fix="Raise --max-num-batched-tokens or lower --max-num-seqs.",
                param="max_num_batched_tokens",
            )
        self.config = config
        self.kv = KVCacheManager(cache, config.max_num_batched_tokens)
        self.requests: dict[str, Request] = {}
        self.running = RunningBatch(config.max_num_seqs, cache.block_size)
        self.waiting = self._line()
        self._loading = Loading(self.kv, config.max_num_batched_tokens)
        self._tier_cost = TierCost(cost, cache.block_size) if cost and self.kv.tier else None
        self._steps = Steps(self.kv, self.running)
        self._admission = Admission(
            config,
            self.kv,
            self.running,
            self.waiting,
            self._loading,
            self._steps,
            self._tier_cost,
        )
        self._results = Results(self.kv, self.running, self._finish)
        self._events = Events()
        self._budget: StepBudget | None = None
        if cost is not None and config.max_itl_stretch is not None:
            self._budget = StepBudget(
                cost,
                max_tokens=config.max_num_batched_tokens,
                max_itl_stretch=config.max_itl_stretch,
            )
        self._arrivals = count()
        self._num_preemptions = 0

    # -- requests in and out -------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Put a request in line.

        Raises:
            InvalidRequestError: if its id is in use, or it could never fit in the KV cache.
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
        by_priority = self.config.policy == "priority"
        request.order = (request.options.priority if by_priority else 0, next(self._arrivals))
        self.requests[request.request_id] = request
        self.waiting.push(request)

    def _line(self) -> WaitingQueue:
        if self.config.policy == "lpm":
            return LongestPrefixQueue(lambda request: len(self.kv.find_prefix(request)))
        return WaitingQueue()

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests and free their blocks; ids that are not here are ignored."""
        before = len(self.requests)
        for request_id in request_ids:
            if request := self.requests.get(request_id):
                request.finish_reason = FinishReason.ABORT
                self._finish(request)
        if len(self.requests) < before:
            self.running.remove_finished()

    def reset_prefix_cache(self) -> None:
        """Forget all prefixes, at any time; who runs goes on, and shares none of it any more."""
        self.kv.reset_prefix_cache()
        self.running.entered[:] = NEVER * self.kv.block_size

    def has_unfinished(self) -> bool:
        return bool(self.requests)

    # -- one step ------------------------------------------------------------------------

    def schedule(self, now: float, num_steps: int = 1) -> SchedulerOutput:
        """Choose the tokens of the next step and the blocks they go to.

        Args:
            num_steps: decode steps to take at once. They are taken while nobody waits and
                everyone decodes.
        """
        running = self.running
        self._steps.begin(now)
        if running.quiet > 0 and num_steps == 1 and not self._may_admit():
            return self._steps.issue_quiet()
        self._events.now = now
        victims = self._make_way()
        preempted = self._num_preemptions
        budget = self._choose_budget()
        further, blocks = self._schedule_running(num_steps, budget)
        admitted: list[Admitted] = []
        if self._num_preemptions == preempted:
            budget -= int(running.scheduled.sum())
            admitted = self._admission.admit(budget, now, victims)
            for request, num_tokens in self._loading.begun(self._steps.number):
                self._events.note("load", request, num_tokens)
        if admitted:
            self._events.admitted(admitted)
            for row, new in enumerate(admitted, len(running)):
                blocks.append((row, new.slid, new.table[new.slid :]))
            moved = running.add(admitted)
            if moved is not None:
                blocks = [(moved[row], first, table) for row, first, table in blocks]
        return self._steps.issue(further, blocks, admitted)

    def update(self, step: SchedulerOutput, result: ModelOutput, now: float) -> StepOutputs:
        """Take in what the oldest step in flight computed: append tokens, end requests."""
        flight = self._steps.land(step)
        self._events.now = now
        self._events.computed(flight, now)
        for request in self._loading.end(step.step, set(result.failed_loads)):
            self._events.note("load_failed", request)
            self.waiting.push(request)
        if self._budget is not None and any(result.times):
            seconds = sum(result.times) / result.num_passes
            self._budget.observe(step.num_scheduled_tokens, step.num_computed_tokens, seconds)
        if self._tier_cost is not None and step.block_copies is not None:
            self._tier_cost.observe(step.block_copies, result.copy_seconds)
        outputs = StepOutputs([], None, now)
        if flight.requests:
            before = len(self.requests)
            self._results.take_in(flight, result, outputs)
            self._steps.reconcile(flight, result.sampled_token_ids)
            if len(self.requests) < before:
                self.running.remove_finished()
        return self._told(outputs)

    def repair(
        self, step: SchedulerOutput, result: ModelOutput, lost: Set[str], now: float
    ) -> StepOutputs:
        """`update` for the oldest step in flight after it failed and was computed in parts.

        Args:
            lost: requests of it that were not computed. They are put back in line, and so is
                everybody if a step was scheduled behind this one, which is dropped.
        """
        self.kv.forget(self._steps.in_flight[0].entered)
        if result.errors:  # whose blocks those that the step loads for may share
            self._undo_loads(step, failed=False)
        outputs = self.update(step, result, now)
        self._drop_in_flight()
        while not lost.isdisjoint(self.running.request_ids):
            self._preempt_last(sound=False)
        return self._told(outputs)

    def fail(self, step: SchedulerOutput, reason: str, now: float) -> StepOutputs:
        """End every request of the oldest step in flight, which could not be computed.

        A step behind it is dropped, and everyone else put back in line.
        """
        flight = self._steps.land(step)
        self._events.now = now
        self._undo_copies(step, failed=True)
        self.kv.forget(flight.entered)
        outputs = StepOutputs([], None, now)
        for request in flight.requests:
            if not request.finished:
                outputs.outputs.append(self._results.fail(request, reason))
        self.running.remove_finished()
        self._drop_in_flight()
        return self._told(outputs)

    def _told(self, outputs: StepOutputs) -> StepOutputs:
        """`outputs` with what there is to say of the scheduler and of events."""
        outputs.stats = self.stats()
        self._events.give(outputs)
        return outputs

    # -- parts of `schedule` ---------------------------------------------------------------

    def _make_way(self) -> list[Request]:
        """Preempt requests of lower priority for the first in line."""
        if self.config.policy != "priority":
            return []
        running = self.running.requests
        victims = running[len(running) - self._admission.num_in_the_way() :]
        for _ in victims:
            self._preempt_last()
        return victims

    def _choose_budget(self) -> int:
        """Tokens of the step; only where prompts meet requests that decode is there a choice."""
        if self._budget is None:
            return self.config.max_num_batched_tokens
        wanted = self.running.wanted()
        if not (self._may_admit() or wanted.max(initial=0) > 1):
            return self.config.max_num_batched_tokens
        seats = self.config.max_num_seqs - len(self.running)
        waiting = min(len(self.waiting), seats) + len(self._loading)
        return self._budget.tokens(wanted, self.running.num_computed, waiting)

    def _schedule_running(
        self, num_steps: int, budget: int
    ) -> tuple[Column | None, list[BlockRun]]:
        """Give running requests their tokens, preempting the last in line while blocks lack.

        Returns:
            Tokens that each may yield after its first, and blocks by row; the tokens to compute
            are in `running.scheduled`.
        """
        running, pool = self.running, self.kv.pool
        if not len(running):
            return None, []
        if self.kv.window is not None:
            self._slide(self.kv.window)
        while True:
            wanted = running.wanted()
            running.scheduled[:] = scheduled = running.share(wanted, budget)
            ends = running.num_computed + scheduled
            further = None
            if num_steps > 1 and not self.waiting and not len(self._loading):
                further = running.further_tokens(wanted, num_steps)
            missing = running.blocks_missing(ends if further is None else ends + further)
            total = int(missing.sum())
            if total > pool.num_free and further is not None:
                further = None
                missing = running.blocks_missing(ends)
                total = int(missing.sum())
            if total <= pool.num_free:
                break
            self._preempt_last()
        if not total:
            return further, []
        rows = missing.nonzero()[0]
        counts = missing[rows]
        running.capacity[rows] += counts * self.kv.block_size
        new = iter(pool.allocate(total))
        blocks: list[BlockRun] = []
        for row, number in zip(rows.tolist(), counts.tolist(), strict=True):
            part = [next(new) for _ in range(number)]
            blocks.append((row, self.kv.extend(running.requests[row], part), part))
        return further, blocks

    def _slide(self, window: int) -> None:
        """Give back the blocks that no token from here on attends to."""
        running = self.running
        first = (running.resumes_at() - window + 1) // self.kv.block_size
        for row in (first > running.slid).nonzero()[0].tolist():
            begin, end = int(running.slid[row]), int(first[row])
            self.kv.slide(running.requests[row], begin, end)
            running.slid[row] = end

    def _may_admit(self) -> bool:
        """Whether somebody waits who could be let in."""
        full = len(self.running) >= self.config.max_num_seqs
        waiting = bool(self.waiting) and not (full and self.config.policy != "priority")
        return waiting or bool(len(self._loading))

    def _preempt_last(self, *, sound: bool = True) -> None:
        """Take the blocks of the request that is last in line and put it back in the queue.

        Args:
            sound: its blocks hold what they should; else they are not entered any more.
        """
        running = self.running
        request, num_computed = running.requests[-1], int(running.num_computed[-1])
        if sound:
            self.kv.enter(request, int(running.certain()[-1]))
            swapped = int(running.resumes_at()[-1])
            if self._should_swap(request, swapped):
                self.kv.swap_out(request, swapped)
        running.pop()
        self.kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self._num_preemptions += 1
        self._steps.removed.append(request.request_id)
        self._events.note("preempted", request, num_computed)
        self.waiting.push(request)

    def _should_swap(self, request: Request, num_tokens: int) -> bool:
        """Whether to keep so many tokens of a request in the host tier while it waits."""
        mode = self.config.preemption_mode
        if mode == "recompute" or not num_tokens or not self.kv.can_swap_out(request, num_tokens):
            return False
        return mode == "swap" or self._tier_cost is None or self._tier_cost.swap_pays(num_tokens)

    # -- parts of `update` -----------------------------------------------------------------

    def _drop_in_flight(self) -> None:
        """Forget steps that were not begun, for the one ahead of them failed."""
        if not self._steps.in_flight:
            return
        for flight in self._steps.in_flight:
            self._undo_copies(flight.step, failed=False)
            self.kv.forget(flight.entered)
            self._steps.removed += flight.step.removed  # the executor was never told
        self._steps.in_flight.clear()
        # Their numbers are those of the steps that are dropped; and they may share what was
        # never written.
        while len(self.running):
            self._preempt_last(sound=False)

    def _undo_copies(self, step: SchedulerOutput, *, failed: bool) -> None:
        """A step failed, or was not begun: rely on nothing that it loaded or stored."""
        self._undo_loads(step, failed=failed)
        if step.block_copies and self.kv.tier:
            self.kv.tier.undo(step.block_copies)

    def _undo_loads(self, step: SchedulerOutput, *, failed: bool) -> None:
        for request in self._loading.undo(step.step, failed=failed):
            self._events.note("load_failed", request)
            self.waiting.push(request)

    def _finish(self, request: Request) -> None:
        """Give up everything a request holds; the caller has set why it ended.

        `running` is cleaned up by the caller, who may end many requests in one pass.
        """
        previous, request.status = request.status, RequestStatus.FINISHED
        del self.requests[request.request_id]
        self._results.forget(request.request_id)
        self.kv.drop_swapped(request)
        if previous is RequestStatus.RUNNING:
            self.kv.free(request)
            self._steps.removed.append(request.request_id)
        elif previous is RequestStatus.LOADING:
            self._loading.abort(request)
        else:
            self.waiting.forget(request)

    # -- what it knows -----------------------------------------------------------------------

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting) + len(self._loading),
            kv_blocks_used=self.kv.pool.num_used,
            kv_blocks_total=self.kv.pool.num_blocks,
            prefix_cache_queries=self.kv.prefix_queries,
            prefix_cache_hits=self.kv.prefix_hits,
            num_preemptions=self._num_preemptions,
            num_steps=self._steps.num_done,
            step_tokens=self._steps.num_tokens,
            host_tier=self.kv.tier.stats() if self.kv.tier else None,
            kv_blocks_cached=self.kv.pool.num_cached,
        )

    def check_integrity(self) -> None:
        """Assert every invariant that holds between steps; for tests, simulation and idle time."""
        self.kv.check_integrity()
        running = self.running
        running.check_integrity()
        self._steps.check_integrity()
        waiting = self.waiting.requests()
        assert len(waiting) == len(self.waiting), "waiting requests were miscounted"
        everyone = [r.request_id for r in running.requests + waiting + self._loading.requests()]
        assert set(everyone) == self.requests.keys(), "a request is in no queue"
        assert len(everyone) == len(self.requests), "a request is in two queues"
        seats = len(running) + len(self._loading)
        assert seats <= self.config.max_num_seqs, "too many requests hold blocks"
        for request, capacity in zip(running.requests, running.capacity.tolist(), strict=True):
            held = len(self.kv.table(request.request_id)) * self.kv.block_size
            assert capacity == held, f"{request} has other blocks than it is thought to have"
        if not self.requests:
            assert self.kv.pool.num_used == 0, "blocks are in use, but nobody is here"
