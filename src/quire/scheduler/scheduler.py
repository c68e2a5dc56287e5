"""The scheduler: one token budget a step, given to running requests first, then to waiting ones.

There are no prefill and decode phases. A request whose last token is not computed yet has
tokens to compute, one or thousands; a step computes as many of them as the budget holds.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress, count

import numpy as np

from quire.core.batch import (
    BlockCopies,
    BlockRun,
    Column,
    ModelOutput,
    NewSequence,
    SchedulerOutput,
    block_columns,
)
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.cost import StepCost
from quire.core.errors import ConfigError, InvalidRequestError
from quire.core.messages import CoreOutput, SchedulerStats, StepOutputs, TokenLogprobs
from quire.core.request import FinishReason, Request, RequestStatus
from quire.kv.manager import NEVER, NO_BLOCK, KVCacheManager, Stored
from quire.scheduler.loading import Loading, load_pays, swap_pays
from quire.scheduler.queue import LongestPrefixQueue, WaitingQueue
from quire.scheduler.running import Admitted, RunningBatch
from quire.scheduler.stop import check_stop

NO_BLOCKS = block_columns([])
MAX_IN_FLIGHT = 2
"""Steps that are scheduled and not taken in: the one that runs, and the one behind it."""


class Scheduler:
    """Owns every request from `add` until it has finished.

    A step may be scheduled while the one ahead of it runs: the tokens that one samples count as
    there, though nobody knows them yet. What comes to light when it is taken in (an end, an
    error, an abort) makes the request's row in the step behind it void, and nothing else.
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
        self._cost = cost
        self._in_flight: deque[_InFlight] = deque()
        self._arrivals = count()
        self._removed: list[str] = []
        self._prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self._num_departed = 0
        self._num_preemptions = 0
        self._num_scheduled_steps = 0
        self._num_steps = 0
        self._step_tokens = 0

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
        request.order = (request.priority if by_priority else 0, next(self._arrivals))
        self.requests[request.request_id] = request
        self.waiting.push(request)

    def _line(self) -> WaitingQueue:
        if self.config.policy == "lpm":
            return LongestPrefixQueue(lambda request: len(self.kv.find_prefix(request)))
        return WaitingQueue()

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests and free their blocks; ids that are not here are ignored."""
        departed = self._num_departed
        for request_id in request_ids:
            if request := self.requests.get(request_id):
                request.finish_reason = FinishReason.ABORT
                self._finish(request)
        if self._num_departed > departed:
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
                everyone decodes; rows that end on the way compute tokens that nobody gets.
        """
        assert len(self._in_flight) < MAX_IN_FLIGHT, "take in a step before scheduling another"
        running = self.running
        self.kv.entered = []
        if running.quiet > 0 and num_steps == 1 and not self._may_admit():
            return self._issue_quiet()
        victims = self._make_way() if self.config.policy == "priority" else []
        preempted = self._num_preemptions
        steps, blocks = self._schedule_running(num_steps)
        admitted: list[Admitted] = []
        if self._num_preemptions == preempted:
            budget = self.config.max_num_batched_tokens - int(running.scheduled.sum())
            admitted = self._schedule_waiting(budget, now, victims)
        if admitted:
            for row, new in enumerate(admitted, len(running)):
                blocks.append((row, new.slid, new.table[new.slid :]))
            moved = running.add(admitted)
            if moved is not None:
                blocks = [(moved[row], first, table) for row, first, table in blocks]
        return self._issue(steps, blocks, [_new_sequence(new.request) for new in admitted])

    def update(self, step: SchedulerOutput, result: ModelOutput, now: float) -> StepOutputs:
        """Take in what the oldest step in flight computed: append tokens, end requests."""
        flight = self._land(step)
        for request in self._loading.end(step.step, set(result.failed_loads)):
            self._wait_again(request)
        outputs = StepOutputs([], None, now)
        if flight.requests and not flight.void:
            departed = self._num_departed
            self._take_in(flight, result, outputs)
            if self._num_departed > departed:
                self.running.remove_finished()
        outputs.stats = self.stats()
        return outputs

    def fail(self, step: SchedulerOutput, reason: str, now: float) -> StepOutputs:
        """End every request of a step that could not be computed; its blocks are not reused.

        Requests of a step scheduled behind it, which may have read what was not written, are
        preempted, and that step is void.
        """
        flight = self._land(step)
        self._undo_copies(step)
        outputs = StepOutputs([], None, now)
        if not flight.void:
            self.kv.forget(flight.entered)
            for request in flight.requests:
                if not request.finished:
                    outputs.outputs.append(self._fail(request, reason))
            self.running.remove_finished()
        for behind in self._in_flight:
            behind.void = True
            self._undo_copies(behind.step)
            self.kv.forget(behind.entered)
            while len(self.running):
                self._preempt_last(sound=False)
        outputs.stats = self.stats()
        return outputs

    # -- parts of `schedule` ---------------------------------------------------------------

    def _schedule_running(self, num_steps: int) -> tuple[int, list[BlockRun]]:
        """Give running requests their tokens, preempting the last in line while blocks lack.

        Returns:
            Steps to take, and blocks by row; the tokens are in `running.scheduled`.
        """
        running, pool = self.running, self.kv.pool
        if self.kv.window is not None:
            self._slide(self.kv.window)
        while True:
            wanted = running.wanted()
            running.scheduled[:] = scheduled = self._share_budget(wanted)
            steps = self._steps_at_once(wanted, num_steps)
            missing = running.blocks_missing(running.num_computed + scheduled * steps)
            total = int(missing.sum())
            if total > pool.num_free and steps > 1:
                steps = 1
                missing = running.blocks_missing(running.num_computed + scheduled)
                total = int(missing.sum())
            if total <= pool.num_free:
                break
            self._preempt_last()
        if not total:
            return steps, []
        rows = missing.nonzero()[0]
        counts = missing[rows]
        running.capacity[rows] += counts * self.kv.block_size
        new = iter(pool.allocate(total))
        blocks: list[BlockRun] = []
        for row, number in zip(rows.tolist(), counts.tolist(), strict=True):
            part = [next(new) for _ in range(number)]
            blocks.append((row, self.kv.extend(running.requests[row], part), part))
        return steps, blocks

    def _slide(self, window: int) -> None:
        """Give back the blocks that no token from here on attends to."""
        running = self.running
        first = (running.num_computed - window + 1) // self.kv.block_size
        for row in (first > running.slid).nonzero()[0].tolist():
            begin, end = int(running.slid[row]), int(first[row])
            self.kv.slide(running.requests[row], begin, end)
            running.slid[row] = end

    def _share_budget(self, wanted: Column) -> Column:
        """Tokens of each request: one for whoever wants any, the rest of the budget in line order.

        Whoever is behind a long prompt so still gets a token in every step.
        """
        budget = self.config.max_num_batched_tokens
        if int(wanted.sum()) <= budget:
            return wanted
        first = np.minimum(wanted, 1)
        more = np.minimum(np.cumsum(wanted - first), budget - int(first.sum()))
        return first + np.diff(more, prepend=0)

    def _steps_at_once(self, wanted: Column, num_steps: int) -> int:
        """How many steps everyone can go without being scheduled again."""
        running = self.running
        if num_steps == 1 or self.waiting or len(self._loading):
            return 1
        if not len(running) or wanted.max() != 1:
            return 1
        decoding = wanted > 0
        left = int((running.limit - running.num_tokens)[decoding].max())
        room = self.config.max_model_len - int(running.num_tokens[decoding].max())
        return max(1, min(num_steps, left, room))

    def _schedule_waiting(self, budget: int, now: float, victims: list[Request]) -> list[Admitted]:
        """Admit requests while there are tokens, seats and blocks left.

        A request is admitted only if all of the tokens it has now would fit beside what the
        running ones still need for theirs: otherwise long prompts would evict each other.
        """
        admitted = self._loading.run(budget)
        budget -= sum(new.scheduled for new in admitted)
        seats = self.config.max_num_seqs - len(self.running) - len(self._loading)
        if not self.waiting or budget <= 0 or len(admitted) >= seats:
            return admitted
        kv, block_size = self.kv, self.kv.block_size
        reserved = int(self._reserved().sum()) + self._loading.blocks_missing
        reserved += sum(kv.blocks_missing(new.request) for new in admitted)
        while self.waiting and budget > 0 and len(admitted) < seats:
            request = self.waiting.peek()
            prefix = kv.find_prefix(request)
            stored = self._find_stored(request, prefix)
            if stored is not None:
                if request in victims or not self._load(request, stored, reserved, now):
                    break
                seats -= 1
                reserved += kv.blocks_missing(request)
                continue
            # A victim may have a token in flight, without which it would not be itself.
            if request in victims or not kv.can_admit(request, prefix, reserved):
                break
            self.waiting.take(request)
            num_cached = len(prefix) * block_size
            self._note_begin(request, num_cached, now)
            request.status = RequestStatus.RUNNING
            num_new = min(request.num_tokens - num_cached, budget)
            budget -= num_new
            table = kv.admit(request, prefix, num_cached + num_new)
            # At once, so that the next in line shares what this one computes in this step.
            entered = kv.enter(request, num_cached + num_new)
            slid = table.count(NO_BLOCK)
            admitted.append(Admitted(request, table, num_cached, num_new, entered, slid))
            reserved += kv.most_blocks(request.num_tokens) - (len(table) - slid)
        return admitted

    def _find_stored(self, request: Request, prefix: list[int]) -> Stored | None:
        """What there is to load for `request`, unless computing it is faster."""
        stored = self.kv.find_stored(request, prefix)
        if stored is None or self._cost is None or not stored.keys:
            return stored
        loaded = stored.num_loads * self.kv.block_size
        return stored if load_pays(self._cost, stored.num_tokens, loaded) else None

    def _load(self, request: Request, stored: Stored, reserved: int, now: float) -> bool:
        """Admit the next in line with blocks to be loaded, if it fits and nobody loads the same."""
        shared = [block for block in stored.blocks if block >= 0]
        if stored.arriving or not self.kv.can_admit(request, shared, reserved):
            return False
        self.waiting.take(request)
        self._note_begin(request, stored.num_tokens, now)
        self._loading.begin(self._num_scheduled_steps + 1, request, stored)
        return True

    def _note_begin(self, request: Request, num_cached: int, now: float) -> None:
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_cached

    def _reserved(self) -> Column:
        """Blocks that each running request still needs for the tokens it has now."""
        running = self.running
        missing = running.blocks_missing(running.num_tokens)
        if self.kv.window is not None:
            held = running.capacity // self.kv.block_size - running.slid
            missing = np.clip(self.kv.most_blocks(sys.maxsize) - held, 0, missing)
        return missing

    def _make_way(self) -> list[Request]:
        """Preempt requests of lower priority than the first in line, if it so gets in."""
        if not self.waiting:
            return []
        first, running = self.waiting.peek(), self.running.requests
        prefix, reserved = self.kv.find_prefix(first), self._reserved()
        seats = self.config.max_num_seqs - len(running) - len(self._loading)
        needed, victims = int(reserved.sum()) + self._loading.blocks_missing, 0
        while seats + victims <= 0 or not self.kv.can_admit(first, prefix, needed):
            victims += 1
            if victims > len(running) or running[-victims].order[0] <= first.order[0]:
                return []
            needed -= int(reserved[-victims]) + self.kv.num_own(running[-victims])
        leaving = running[len(running) - victims :]
        for _ in leaving:
            self._preempt_last()
        return leaving

    def _issue(
        self, steps: int, blocks: list[BlockRun], new_sequences: list[NewSequence]
    ) -> SchedulerOutput:
        """The step that `running.scheduled` says; its tokens count as computed from now."""
        running = self.running
        scheduled = running.scheduled
        # Tokens that the step ahead is still sampling are nobody's yet: no block hash has them.
        known = running.num_tokens - (running.num_pending if self._in_flight else 0)
        computed = running.num_computed.copy()
        running.num_computed += scheduled * steps
        if self.kv.caching:
            ready = np.minimum(running.num_computed, known)
            for row in (ready - running.entered >= self.kv.block_size).nonzero()[0].tolist():
                running.entered[row] = self.kv.enter(running.requests[row], int(ready[row]))
        samples = (running.num_computed >= running.num_tokens) & (scheduled > 0)
        np.multiply(samples, steps, out=running.num_pending)
        running.num_tokens += running.num_pending
        # Who gets a full `CoreOutput`: with the first token, and with the last one possible.
        told = samples & ((running.untold > 0) | (running.num_tokens >= running.limit))
        running.untold[samples] = 0
        requests, names, tokens = running.requests, running.request_ids, running.token_ids
        new_blocks = block_columns(blocks)
        if not scheduled.all():
            active = scheduled > 0
            new_blocks[0] = (np.cumsum(active) - 1)[new_blocks[0]]
            scheduled, computed, told = scheduled[active], computed[active], told[active]
            keep = active.tolist()
            requests, names = list(compress(requests, keep)), list(compress(names, keep))
            tokens = list(compress(tokens, keep))
        if steps == 1 and len(running) and samples.all():
            running.count_quiet(self.kv.window)
        return self._launch(
            SchedulerOutput(
                step=self._num_scheduled_steps + 1,
                request_ids=names,
                num_scheduled_tokens=scheduled.copy(),
                num_computed_tokens=computed,
                new_blocks=new_blocks,
                new_sequences=new_sequences,
                removed=[],
                total_num_scheduled_tokens=int(scheduled.sum()) * steps,
                num_steps=steps,
                block_copies=self._copies(),
            ),
            requests,
            tokens,
            told.nonzero()[0].tolist(),
        )

    def _may_admit(self) -> bool:
        """Whether somebody waits who could be let in."""
        full = len(self.running) >= self.config.max_num_seqs
        waiting = bool(self.waiting) and not (full and self.config.policy != "priority")
        return waiting or bool(len(self._loading))

    def _copies(self) -> BlockCopies | None:
        return self.kv.tier.take_copies() if self.kv.tier else None

    def _issue_quiet(self) -> SchedulerOutput:
        """`_issue` for a step of which `running` knows that it is like the one before."""
        running = self.running
        running.quiet -= 1
        computed = running.num_computed.copy()
        running.num_computed += 1
        running.num_tokens += 1
        return self._launch(
            SchedulerOutput(
                step=self._num_scheduled_steps + 1,
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
        )

    def _launch(
        self,
        step: SchedulerOutput,
        requests: list[Request],
        token_ids: list[array[int]],
        told: list[int],
    ) -> SchedulerOutput:
        """Note that a step is in flight."""
        self._num_scheduled_steps += 1
        step.removed.extend(self._removed)
        self._removed.clear()
        self._in_flight.append(
            _InFlight(step, requests, token_ids, told, self.kv.entered, self._num_departed)
        )
        return step

    def _preempt_last(self, *, sound: bool = True) -> None:
        """Take the blocks of the request that is last in line and put it back in the queue.

        Args:
            sound: its blocks hold what they should; else they are not entered any more.
        """
        running = self.running
        request, num_computed = running.requests[-1], int(running.num_computed[-1])
        if sound:
            pending = running.num_pending[-1] if self._in_flight else 0
            self.kv.enter(request, min(int(running.num_tokens[-1] - pending), num_computed))
            if self._should_swap(request, num_computed):
                self.kv.swap_out(request, num_computed)
        running.pop()
        self.kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self._num_preemptions += 1
        self._num_departed += 1
        self._removed.append(request.request_id)
        self._wait_again(request)

    def _wait_again(self, request: Request) -> None:
        """Put a request that has lost its blocks back to its place in line."""
        if not self.kv.is_swapped(request):
            self._prompt_logprobs.pop(request.request_id, None)
        self.waiting.push(request)

    def _should_swap(self, request: Request, num_tokens: int) -> bool:
        """Whether to keep so many tokens of a request in the host tier while it waits."""
        mode = self.config.preemption_mode
        if mode == "recompute" or not num_tokens or not self.kv.can_swap_out(request, num_tokens):
            return False
        return mode == "swap" or self._cost is None or swap_pays(self._cost, num_tokens)

    # -- parts of `update` -----------------------------------------------------------------

    def _land(self, step: SchedulerOutput) -> _InFlight:
        flight = self._in_flight.popleft()
        assert flight.step is step, "steps are taken in as they were scheduled"
        self._num_steps = step.step
        self._step_tokens = step.total_num_scheduled_tokens
        return flight

    def _take_in(self, flight: _InFlight, result: ModelOutput, outputs: StepOutputs) -> None:
        """Append what was sampled: to plain rows all at once, to the others one by one."""
        sampled = result.sampled_token_ids
        told = set(flight.told)
        if self._num_departed > flight.num_departed:
            told.update(i for i, request in enumerate(flight.requests) if not request.running)
        for column in (result.errors, result.logprobs, result.prompt_logprobs):
            if column:
                told.update(i for i, name in enumerate(flight.step.request_ids) if name in column)
        width = sampled.shape[1]
        tokens = sampled.ravel().tolist()
        stops = self.running.stop_ids
        if not stops.keys().isdisjoint(tokens):
            told.update(i // width for i, token in enumerate(tokens) if token in stops)
        names, arrays = flight.step.request_ids, flight.token_ids
        plain = sampled[:, -1] >= 0 if width else np.zeros(len(names), dtype=np.bool_)
        plain[list(told)] = False
        if not plain.all():
            told.update(np.flatnonzero(~plain & (sampled[:, 0] >= 0)).tolist() if width else ())
            keep = plain.tolist()
            names, arrays = list(compress(names, keep)), list(compress(arrays, keep))
            tokens = sampled[plain].ravel().tolist()
        if width == 1:
            for array_, token in zip(arrays, tokens, strict=True):
                array_.append(token)
        else:
            for i, array_ in enumerate(arrays):
                array_.extend(tokens[i * width : (i + 1) * width])
        outputs.request_ids, outputs.new_token_ids = names, tokens
        for entry in sorted(told):
            request = flight.requests[entry]
            if not request.finished:
                new = [token for token in sampled[entry].tolist() if token >= 0]
                self._tell(request, new, result, outputs)

    def _undo_copies(self, step: SchedulerOutput) -> None:
        """A step failed: nothing it loaded is relied on, nor what it stored."""
        for request in self._loading.undo(step.step):
            self._wait_again(request)
        if step.block_copies and self.kv.tier:
            for request_id in self.kv.tier.undo(step.block_copies):
                self._prompt_logprobs.pop(request_id, None)

    def _tell(
        self, request: Request, tokens: list[int], result: ModelOutput, outputs: StepOutputs
    ) -> None:
        """Take in one row of which there may be more to say than its tokens."""
        name = request.request_id
        if name in result.errors:
            outputs.outputs.append(self._fail(request, result.errors[name]))
            return
        if name in result.prompt_logprobs and request.num_output_tokens == 0:
            self._prompt_logprobs.setdefault(name, []).extend(result.prompt_logprobs[name])
        if tokens:
            outputs.outputs.append(self._append(request, tokens, result.logprobs.get(name)))

    def _append(
        self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs] | None
    ) -> CoreOutput:
        """Append sampled tokens up to the one that ends the request, if one does."""
        # Taken first: a request that ends with its first token still tells of its prompt.
        prompt_logprobs = self._prompt_logprobs.pop(request.request_id, None)
        kept = 0
        for token in tokens:
            request.token_ids.append(token)
            kept += 1
            if check_stop(request):
                if request.status is RequestStatus.RUNNING:
                    self.kv.enter(request, request.num_tokens - 1)
                self._finish(request)
                break
        return CoreOutput(
            request_id=request.request_id,
            new_token_ids=tokens[:kept],
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            num_cached_tokens=request.num_cached_tokens,
            scheduled_time=request.first_scheduled_time or 0.0,
            num_preemptions=request.num_preemptions,
            logprobs=logprobs[:kept] if logprobs else None,
            prompt_logprobs=prompt_logprobs,
        )

    def _fail(self, request: Request, reason: str) -> CoreOutput:
        """End a request whose blocks may hold wrong values: nobody may find them again."""
        request.finish_reason = FinishReason.ERROR
        request.stop_reason = reason
        self.kv.discard(request)
        self._finish(request)
        return CoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=FinishReason.ERROR,
            stop_reason=reason,
        )

    def _finish(self, request: Request) -> None:
        """Give up everything a request holds; the caller has set why it ended.

        `running` is cleaned up by the caller, who may end many requests in one pass.
        """
        previous, request.status = request.status, RequestStatus.FINISHED
        del self.requests[request.request_id]
        self._num_departed += 1
        self._prompt_logprobs.pop(request.request_id, None)
        self.kv.drop_swapped(request)
        if previous is RequestStatus.RUNNING:
            self.kv.free(request)
            self._removed.append(request.request_id)
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
            num_steps=self._num_steps,
            step_tokens=self._step_tokens,
            host_tier=self.kv.tier.stats() if self.kv.tier else None,
        )

    def check_integrity(self) -> None:
        """Assert every invariant that holds between steps; for tests, simulation and idle time."""
        self.kv.check_integrity()
        running = self.running
        running.check_integrity(in_flight=bool(self._in_flight))
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


@dataclass(slots=True)
class _InFlight:
    """A step that has been scheduled and not taken in yet, its columns in the step's order.

    Attributes:
        told: entries of which there will be more to say than their token.
        entered: blocks that entered the prefix cache for it: wrong, should it fail.
        num_departed: how many requests had stopped running when it was scheduled.
        void: what it computes is of no use.
    """

    step: SchedulerOutput
    requests: list[Request]
    token_ids: list[array[int]]
    told: list[int]
    entered: list[int]
    num_departed: int
    void: bool = False


def _new_sequence(request: Request) -> NewSequence:
    return NewSequence(
        request.request_id,
        request.token_ids[:],
        request.num_prompt_tokens,
        request.sampling_params,
        request.eos_token_ids,
    )
