"""The scheduler: one token budget a step, given to running requests first, then to waiting ones.

There are no prefill and decode phases. A request whose last token is not computed yet has
tokens to compute, one or thousands; a step computes as many of them as the budget holds.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from itertools import count

from quire.core.batch import ModelOutput, NewSequence, SchedulerOutput
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.errors import ConfigError, InvalidRequestError
from quire.core.messages import CoreOutput, SchedulerStats, TokenLogprobs
from quire.core.request import FinishReason, Request, RequestStatus
from quire.kv.manager import KVCacheManager
from quire.scheduler.queue import WaitingQueue
from quire.scheduler.stop import check_stop


class Scheduler:
    """Owns every request from `add` until it has finished.

    `running` is in line order, so that its last request is always the one to preempt, and no
    request is preempted after it was given tokens in the same step.
    """

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {config.max_num_batched_tokens}, less than "
                f"max_num_seqs, {config.max_num_seqs}: a step could not serve everyone.",
                fix="Raise --max-num-batched-tokens or lower --max-num-seqs.",
                param="max_num_batched_tokens",
            )
        self.config = config
        self.kv = KVCacheManager(cache)
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting = WaitingQueue()
        self._arrivals = count()
        self._removed: list[str] = []
        self._prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self._num_preemptions = 0
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
        blocks = -(-request.max_total_tokens // self.kv.block_size)
        if blocks > self.kv.pool.num_blocks:
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

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests and free their blocks; ids that are not here are ignored."""
        for request_id in request_ids:
            if request := self.requests.get(request_id):
                request.finish_reason = FinishReason.ABORT
                self._finish(request)

    def has_unfinished(self) -> bool:
        return bool(self.requests)

    # -- one step ------------------------------------------------------------------------

    def schedule(self, now: float) -> SchedulerOutput:
        """Choose the tokens of the next step and the blocks they go to."""
        step = _Step(budget=self.config.max_num_batched_tokens)
        preempted = self._schedule_running(step)
        if not preempted:
            self._schedule_waiting(step, now)
        self._num_steps += 1
        self._step_tokens = self.config.max_num_batched_tokens - step.budget
        removed, self._removed = self._removed, []
        return SchedulerOutput(
            step=self._num_steps,
            request_ids=step.request_ids,
            num_scheduled_tokens=step.num_scheduled,
            num_computed_tokens=step.num_computed,
            new_block_ids=step.new_block_ids,
            new_sequences=step.new_sequences,
            removed=removed,
            total_num_scheduled_tokens=self._step_tokens,
        )

    def update(self, step: SchedulerOutput, result: ModelOutput, now: float) -> list[CoreOutput]:
        """Take in what a step computed: append tokens, end requests, say what is new."""
        outputs = []
        finished = False
        for request_id, tokens in zip(step.request_ids, result.sampled_token_ids, strict=True):
            request = self.requests.get(request_id)
            if request is None:  # aborted while the step ran
                continue
            if request_id in result.errors:
                outputs.append(self._fail(request, result.errors[request_id]))
                finished = True
                continue
            if request_id in result.prompt_logprobs and request.num_output_tokens == 0:
                seen = self._prompt_logprobs.setdefault(request_id, [])
                seen += result.prompt_logprobs[request_id]
            if not tokens:
                continue
            output = self._append(request, tokens, result.logprobs.get(request_id))
            outputs.append(output)
            finished |= request.finished
        if finished:
            self.running = [r for r in self.running if not r.finished]
        return outputs

    def fail(self, step: SchedulerOutput, reason: str) -> list[CoreOutput]:
        """End every request of a step that could not be computed; its blocks are not reused."""
        requests = [self.requests[i] for i in step.request_ids if i in self.requests]
        outputs = [self._fail(request, reason) for request in requests]
        self.running = [r for r in self.running if not r.finished]
        return outputs

    # -- parts of a step -----------------------------------------------------------------

    def _schedule_running(self, step: _Step) -> bool:
        """Give running requests their tokens, in line order; whether any was preempted."""
        preempted = False
        index = 0
        while index < len(self.running):
            request = self.running[index]
            # Whoever is behind a long prompt still gets a token in every step.
            behind = len(self.running) - index - 1
            num_computed = request.num_computed_tokens
            num_new = min(request.num_tokens - num_computed, step.budget - behind)
            while (blocks := self.kv.extend(request, num_computed + num_new)) is None:
                preempted = True
                if self._preempt_last() is request:
                    return True
            step.give(request, num_new, blocks)
            self.kv.remember(request, num_computed + num_new)
            index += 1
        return preempted

    def _schedule_waiting(self, step: _Step, now: float) -> None:
        """Admit requests while there are tokens, seats and blocks left.

        A request is admitted only if all of the tokens it has now would fit beside what the
        running ones still need for theirs: otherwise long prompts would evict each other.
        """
        if not self.waiting or step.budget == 0:
            return
        reserved = sum(self.kv.blocks_missing(request) for request in self.running)
        while self.waiting and step.budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.peek()
            prefix = self.kv.find_prefix(request)
            if not self.kv.can_admit(request, prefix, reserved):
                break
            self.waiting.pop()
            self.kv.admit(request, prefix)
            request.num_computed_tokens = num_cached = len(prefix) * self.kv.block_size
            if request.first_scheduled_time is None:
                request.first_scheduled_time = now
                request.num_cached_tokens = num_cached
            request.status = RequestStatus.RUNNING
            insort(self.running, request, key=_order)
            num_new = min(request.num_tokens - num_cached, step.budget)
            assert self.kv.extend(request, num_cached + num_new) is not None
            step.new_sequences.append(
                NewSequence(
                    request.request_id,
                    request.token_ids.copy(),
                    request.num_prompt_tokens,
                    request.sampling_params,
                    request.eos_token_ids,
                )
            )
            step.give(request, num_new, self.kv.table(request.request_id).copy())
            self.kv.remember(request, num_cached + num_new)
            reserved += self.kv.blocks_missing(request)

    def _preempt_last(self) -> Request:
        """Take the blocks of the request that is last in line and put it back in the queue."""
        request = self.running.pop()
        self.kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self._num_preemptions += 1
        self._prompt_logprobs.pop(request.request_id, None)
        self._removed.append(request.request_id)
        self.waiting.push(request)
        return request

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
        request.finish_reason = FinishReason.ERROR
        request.stop_reason = reason
        self._finish(request)
        return CoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=FinishReason.ERROR,
            stop_reason=reason,
        )

    def _finish(self, request: Request) -> None:
        """Give up everything a request holds; the caller has set why it ended.

        `running` is cleaned up by the caller where it ends many requests in one pass.
        """
        previous, request.status = request.status, RequestStatus.FINISHED
        del self.requests[request.request_id]
        self._prompt_logprobs.pop(request.request_id, None)
        if previous is not RequestStatus.RUNNING:
            self.waiting.forget(request)
            return
        self._removed.append(request.request_id)
        if request.finish_reason is FinishReason.ERROR:
            self.kv.discard(request)
        else:
            self.kv.free(request)
        if request.finish_reason is FinishReason.ABORT:
            self.running.remove(request)

    # -- looking in ----------------------------------------------------------------------

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_blocks_used=self.kv.pool.num_used,
            kv_blocks_total=self.kv.pool.num_blocks,
            prefix_cache_queries=self.kv.prefix_queries,
            prefix_cache_hits=self.kv.prefix_hits,
            num_preemptions=self._num_preemptions,
            num_steps=self._num_steps,
            step_tokens=self._step_tokens,
        )

    def check_integrity(self) -> None:
        """Assert every invariant that holds between steps; for tests, simulation and idle time."""
        self.kv.check_integrity()
        assert self.running == sorted(self.running, key=_order), "running is out of order"
        waiting = self.waiting.requests()
        assert len(waiting) == len(self.waiting), "waiting requests were miscounted"
        everyone = {r.request_id for r in self.running} | {r.request_id for r in waiting}
        assert everyone == self.requests.keys(), "a request is in no queue"
        assert len(self.running) + len(waiting) == len(everyone), "a request is in two queues"
        assert len(self.running) <= self.config.max_num_seqs, "too many run at once"
        for request in self.running:
            room = len(self.kv.table(request.request_id)) * self.kv.block_size
            assert request.num_computed_tokens <= room, f"{request} has no blocks for its tokens"
            assert request.num_computed_tokens <= request.num_tokens, f"{request} ran ahead"
        if not self.requests:
            assert self.kv.pool.num_used == 0, "blocks are in use, but nobody is here"


class _Step:
    """A `SchedulerOutput` in the making."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.request_ids: list[str] = []
        self.num_scheduled: list[int] = []
        self.num_computed: list[int] = []
        self.new_block_ids: list[list[int]] = []
        self.new_sequences: list[NewSequence] = []

    def give(self, request: Request, num_tokens: int, blocks: list[int]) -> None:
        """Schedule the next `num_tokens` tokens of `request`; they count as computed from now."""
        self.request_ids.append(request.request_id)
        self.num_scheduled.append(num_tokens)
        self.num_computed.append(request.num_computed_tokens)
        self.new_block_ids.append(blocks)
        self.budget -= num_tokens
        request.num_computed_tokens += num_tokens


def _order(request: Request) -> tuple[int, int]:
    return request.order
