"""Who of those in line gets a seat and blocks in the next step."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from quire.core.batch import Column
from quire.core.config import SchedulerConfig
from quire.core.request import Request, RequestStatus
from quire.kv.manager import NO_BLOCK, KVCacheManager, Stored
from quire.scheduler.loading import Loading
from quire.scheduler.queue import REACH, WaitingQueue
from quire.scheduler.running import Admitted, RunningBatch
from quire.scheduler.steps import Steps
from quire.scheduler.tier_cost import TierCost


class Admission:
    """Decides between the line and those who hold blocks; it preempts nobody itself."""

    def __init__(
        self,
        limits: SchedulerConfig,
        kv: KVCacheManager,
        running: RunningBatch,
        waiting: WaitingQueue,
        loading: Loading,
        steps: Steps,
        tier_cost: TierCost | None,
    ) -> None:
        self._max_num_seqs = limits.max_num_seqs
        self._max_loras = limits.max_loras
        self._kv = kv
        self._running = running
        self._waiting = waiting
        self._loading = loading
        self._steps = steps
        self._tier_cost = tier_cost
        self._whole_prompts = limits.whole_prompts

    def admit(self, budget: int, now: float, victims: Sequence[Request]) -> list[Admitted]:
        """Admit requests while there are tokens, seats and blocks left.

        A request is admitted only if all of the tokens it has now would fit beside what the
        running ones still need for theirs: otherwise long prompts would evict each other. Where its
        adapter would be one too many, those of the next `REACH` - 1 arrivals may overtake it that
        bring none or one that is there.

        Args:
            victims: preempted for this step. They wait for the next one.
        """
        aside: list[Request] = []
        adapters = self._adapters()
        try:
            return self._admit(budget, now, victims, adapters, aside)
        finally:
            for request in aside:
                self._waiting.push(request)

    def _admit(
        self,
        budget: int,
        now: float,
        victims: Sequence[Request],
        adapters: set[int],
        aside: list[Request],
    ) -> list[Admitted]:
        """`admit`; whose adapter is one too many leaves the line for `aside`."""
        admitted = self._loading.run(budget)
        budget -= sum(new.scheduled for new in admitted)
        seats = self._max_num_seqs - len(self._running) - len(self._loading)
        if not self._waiting or budget <= 0 or len(admitted) >= seats:
            return admitted
        kv, block_size = self._kv, self._kv.block_size
        reserved = int(self._reserved().sum()) + self._loading.blocks_missing
        reserved += sum(kv.blocks_missing(new.request) for new in admitted)
        loadable = budget  # or many prefixes loaded at once would make everyone wait
        while self._waiting and budget > 0 and len(admitted) < seats:
            request = self._waiting.peek()
            if aside and request.order >= _reach(aside[0]):
                break
            if self._is_one_too_many(request, adapters):
                self._waiting.take(request)
                aside.append(request)
                continue
            # Without its tokens in flight it would not be itself.
            if request in victims or self._steps.count_of(request):
                break
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
            if not kv.can_admit(request, prefix, reserved):
                break
            if self._whole_prompts and request.num_tokens > budget:
                break
            self._waiting.take(request)
            adapters.add(request.lora_int_id)
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

    def _adapters(self, num_running: int | None = None) -> set[int]:
        """Adapters of those who hold blocks, of the first `num_running` who run; 0 is none."""
        if self._max_loras is None:
            return set()
        holders = [*self._running.requests[:num_running], *self._loading.requests()]
        return {request.lora_int_id for request in holders}

    def _is_one_too_many(self, request: Request, adapters: set[int]) -> bool:
        """Whether the step would have more adapters than it may with this one beside those."""
        name = request.lora_int_id
        if self._max_loras is None or not name or name in adapters:
            return False
        return len(adapters - {0}) >= self._max_loras

    def _find_stored(self, request: Request, prefix: list[int]) -> Stored | None:
        """What there is to load for `request`, unless computing it is faster."""
        stored = self._kv.find_stored(request, prefix)
        if stored is None or self._tier_cost is None or not stored.keys:
            return stored
        size = self._kv.block_size
        pays = self._tier_cost.load_pays(
            stored.num_tokens,
            stored.num_tokens - len(prefix) * size,
            stored.num_loads * size,
            stored.num_from_files * size,
        )
        return stored if pays else None

    def _load(self, request: Request, stored: Stored, reserved: int, now: float) -> bool:
        """Admit the next in line with blocks to be loaded, if it fits and nobody loads the same."""
        shared = [block for block in stored.blocks if block >= 0]
        if stored.arriving or not self._kv.can_admit(request, shared, reserved):
            return False
        self._waiting.take(request)
        self._note_begin(request, stored.num_tokens, now)
        self._loading.begin(self._steps.number, request, stored)
        return True

    def _note_begin(self, request: Request, num_cached: int, now: float) -> None:
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_cached

    def _reserved(self) -> Column:
        """Blocks that each running request still needs for the tokens it has now."""
        running = self._running
        missing = running.blocks_missing(running.num_tokens)
        if self._kv.window is not None:
            held = running.capacity // self._kv.block_size - running.slid
            missing = np.clip(self._kv.most_blocks(sys.maxsize) - held, 0, missing)
        return missing

    def num_in_the_way(self) -> int:
        """How many requests at the end of `running`, all of lower priority than the first in line,
        would have to leave so that it gets in; none where that is in vain."""
        if not self._waiting:
            return 0
        first, running = self._waiting.peek(), self._running.requests
        prefix, reserved = self._kv.find_prefix(first), self._reserved()
        seats = self._max_num_seqs - len(running) - len(self._loading)
        needed, victims = int(reserved.sum()) + self._loading.blocks_missing, 0
        while (
            seats + victims <= 0
            or not self._kv.can_admit(first, prefix, needed)
            or self._is_one_too_many(first, self._adapters(len(running) - victims))
        ):
            victims += 1
            if victims > len(running) or running[-victims].order[0] <= first.order[0]:
                return 0
            needed -= int(reserved[-victims]) + self._kv.num_own(running[-victims])
        return victims


def _reach(first: Request) -> tuple[int, int]:
    """The place in line from which on nobody may overtake `first`."""
    priority, arrival = first.order
    return priority, arrival + REACH
