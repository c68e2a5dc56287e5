"""Chooses the waiting requests that begin in the next step."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from quire.core.batch import Column
from quire.core.request import Request, RequestStatus
from quire.kv.prefix import NO_BLOCK
from quire.kv.stored import Stored
from quire.scheduler.queue import reach_of
from quire.scheduler.running import Admitted
from quire.scheduler.state import SchedulerState


class Admission:
    """Admits waiting requests. It computes whom to preempt, but preempts nobody itself."""

    def __init__(self, state: SchedulerState) -> None:
        config = state.config
        self._max_num_seqs = config.max_num_seqs
        self._max_loras = config.max_loras
        self._whole_prompts = config.whole_prompts
        self._image_chunks = state.image_chunks
        self._most = config.max_num_batched_tokens
        self._kv = state.kv
        self._running = state.running
        self._waiting = state.waiting
        self._unread = state.unread
        self._loading = state.loading
        self._steps = state.steps
        self._tier_cost = state.tier_cost

    def admit(self, budget: int, now: float, victims: Sequence[Request]) -> list[Admitted]:
        """Admit requests while tokens, rows and blocks are left.

        A request is admitted only if all its present tokens fit, in addition to the blocks that
        running requests still need. Otherwise long prompts would evict each other. If its adapter
        is one too many, requests among the next 31 arrivals may overtake it: those without
        an adapter, or with one that is in the step. Any request may overtake one that waits for an
        image to be read.

        Args:
            budget: tokens left in the step.
            victims: requests preempted for this step; they wait for the next one.
        """
        self._unread.release()
        aside: list[Request] = []
        try:
            return self._admit(budget, now, victims, aside)
        finally:
            for request in aside:
                self._waiting.push(request)

    def _admit(
        self,
        budget: int,
        now: float,
        victims: Sequence[Request],
        aside: list[Request],
    ) -> list[Admitted]:
        """Do what `admit` does; move requests that others may overtake to `aside`."""
        running = self._running
        room = self._most - int(running.scheduled.sum() + running.further.sum())
        adapters = self._adapters(running.requests)
        admitted = self._loading.run(budget, room)
        loaded = sum(new.scheduled for new in admitted)
        budget, room = budget - loaded, room - loaded
        seats = self._max_num_seqs - len(self._running) - len(self._loading)
        kv, block_size = self._kv, self._kv.block_size
        reserved: int | None = None  # costs too much for steps that admit nobody
        loadable = budget  # loading many prefixes at once would delay all requests
        while self._waiting and budget > 0 and len(admitted) < seats:
            request = self._waiting.peek()
            if aside and request.order >= reach_of(aside[0]):
                break
            if self._is_one_too_many(request, adapters):
                self._waiting.take(request)
                aside.append(request)
                continue
            # It cannot begin again before its tokens in flight are known.
            if request in victims or self._steps.count_of(request):
                break
            if reserved is None:
                reserved = int(self.reserved().sum()) + self._loading.blocks_missing
            prefix = kv.find_prefix(request)
            stored = self._find_stored(request, prefix)
            if stored is not None:
                if loadable <= 0 or not self._load(request, stored, reserved, now):
                    break
                adapters.add(request.lora_int_id)
                loadable -= stored.num_loads * block_size
                seats -= 1
                reserved += kv.blocks_missing(request)
                continue
            if kv.arrives(request, prefix) or not kv.can_admit(request, prefix, reserved):
                break
            num_cached = len(prefix) * block_size
            if self._unread.takes(request, num_cached, aside):
                continue
            num_new = self._chunk(request, num_cached, budget, room)
            if not num_new:
                break
            self._waiting.take(request)
            adapters.add(request.lora_int_id)
            self._note_begin(request, num_cached, now)
            request.status = RequestStatus.RUNNING
            budget, room = budget - num_new, room - num_new
            table = kv.admit(request, prefix, num_cached + num_new)
            # At once, so that the next request can share the blocks that this one computes.
            entered = kv.enter(request, num_cached + num_new)
            slid = table.count(NO_BLOCK)
            admitted.append(Admitted(request, table, num_cached, num_new, entered, slid))
        return admitted

    def _chunk(self, request: Request, start: int, budget: int, room: int) -> int:
        """Return how many tokens of a request to compute first; 0 if it has to wait."""
        if self._whole_prompts and request.num_tokens > budget:
            return 0
        count = min(request.num_tokens - start, budget)
        return self._image_chunks.chunk(request, start, count, room)

    def _adapters(self, running: Sequence[Request]) -> set[int]:
        """Return the adapters of `running` and of loading requests. Id 0 means no adapter."""
        if self._max_loras is None:
            return set()
        return {request.lora_int_id for request in (*running, *self._loading.requests())}

    def fits_beside(self, request: Request, running: Sequence[Request]) -> bool:
        """Return whether the request may run with `running`, if there are blocks and seats."""
        return not self._is_one_too_many(request, self._adapters(running))

    def _is_one_too_many(self, request: Request, adapters: set[int]) -> bool:
        """Return whether the request's adapter would exceed the limit per step."""
        name = request.lora_int_id
        if self._max_loras is None or not name or name in adapters:
            return False
        return len(adapters - {0}) >= self._max_loras

    def _find_stored(self, request: Request, prefix: list[int]) -> Stored | None:
        """Return the stored blocks to load for `request`; None if computing them is faster."""
        stored = self._kv.find_stored(request, prefix)
        if stored is None or self._tier_cost is None or stored.is_swapped:
            return stored
        size = self._kv.block_size
        pays = self._tier_cost.load_pays(
            stored.num_tokens,
            stored.num_tokens - len(prefix) * size,
            stored.num_loads * size,
            stored.num_from_files * size,
            with_state=stored.state is not None,
        )
        return stored if pays else None

    def _load(self, request: Request, stored: Stored, reserved: int, now: float) -> bool:
        """Admit a request with blocks to load, if it fits and no other request loads the same."""
        shared = [block for block in stored.blocks if block >= 0]
        if stored.arriving or not self._kv.can_admit(request, shared, reserved):
            return False
        self._waiting.take(request)
        self._note_begin(request, stored.num_tokens, now)
        self._loading.begin(self._steps.number, request, stored)
        return True

    def _note_begin(self, request: Request, num_cached: int, now: float) -> None:
        request.first_scheduled_time = request.first_scheduled_time or now
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_cached

    def reserved(self) -> Column:
        """Return how many more blocks each running request needs for its present tokens."""
        running = self._running
        missing = running.blocks_missing(running.num_tokens)
        if self._kv.window is not None:
            held = running.capacity // self._kv.block_size - running.slid
            missing = np.clip(self._kv.most_blocks(sys.maxsize) - held, 0, missing)
        return missing

    def queued(self) -> dict[str, int]:
        """Return the tokens of the next request, by client, if the client computes no prompt yet.

        Empty if the request cannot begin in this step.
        """
        ready, waits = self._loading.next(), len(self._waiting) > 0
        full = len(self._running) + len(self._loading) >= self._max_num_seqs
        if ready is None and (full or not waits):
            return {}
        first, tokens = ready or (self._waiting.peek(), 0)
        client, running = first.options.client, self._running.requests
        if self._running.clients.keys() <= {client}:
            return {}
        rows = (self._running.wanted() > 1).nonzero()[0].tolist()
        prompts = {running[row].options.client for row in rows}
        if not prompts or client in prompts:
            return {}
        if ready is None:
            prefix = self._kv.find_prefix(first)
            reserved = int(self.reserved().sum()) + self._loading.blocks_missing
            if self._kv.can_admit(first, prefix, reserved) and not self._steps.count_of(first):
                tokens = first.num_tokens - len(prefix) * self._kv.block_size
        return {client: tokens} if tokens else {}

    def num_victims(self) -> int:
        """Return how many running requests to preempt for the first request in the queue.

        They are the last ones of `running`, all of lower priority. 0 if preemption cannot help.
        """
        if not self._waiting:
            return 0
        first, running = self._waiting.peek(), self._running.requests
        prefix, reserved = self._kv.find_prefix(first), self.reserved()
        seats = self._max_num_seqs - len(running) - len(self._loading)
        needed, victims = int(reserved.sum()) + self._loading.blocks_missing, 0
        while (
            seats + victims <= 0
            or not self._kv.can_admit(first, prefix, needed, victims)
            or self._is_one_too_many(first, self._adapters(running[: len(running) - victims]))
        ):
            victims += 1
            if victims > len(running) or running[-victims].order[0] <= first.order[0]:
                return 0
            needed -= int(reserved[-victims]) + self._kv.num_own(running[-victims])
        return victims
