"""The state that the scheduler's parts share: the KV cache, the queue and the running batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.cost import StepCost
from quire.core.messages import SchedulerStats
from quire.core.request import Request
from quire.kv.lower_tiers import LowerTier
from quire.kv.manager import KVCacheManager
from quire.scheduler.depth import Depth
from quire.scheduler.events import Events
from quire.scheduler.image_chunks import ImageChunks
from quire.scheduler.loading import Loading
from quire.scheduler.queue import LongestPrefixQueue, WaitingQueue
from quire.scheduler.running import RunningBatch
from quire.scheduler.seats import Seats
from quire.scheduler.steps import Steps
from quire.scheduler.tier_cost import TierCost
from quire.scheduler.unread import Unread


class SchedulerState:
    """Each request is in `waiting`, `unread`, `loading` or `running`.

    Attributes:
        tier_cost: None if all copies to and from the tiers are assumed to pay off.
        depth: None without speculative decoding.
        num_preemptions: preemptions so far.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        cost: StepCost | None,
        lower: Sequence[LowerTier] = (),
    ) -> None:
        self.config = config
        self.kv = KVCacheManager(cache, config.max_num_batched_tokens, lower)
        self.running = RunningBatch(config.max_num_seqs, cache.block_size, config.micro_batches)
        self.waiting = self._new_queue()
        image_chunks = ImageChunks(config.max_num_batched_tokens)
        self.loading = Loading(self.kv, config.max_num_batched_tokens, image_chunks)
        self.seats = Seats(
            self.running, self.waiting, self.loading, self.kv, config.max_num_seqs,
            is_fair=config.policy != "lpm",
        )  # fmt: skip
        self.unread = Unread(self.waiting, self.kv, image_chunks)
        self.steps = Steps(self.kv, self.running)
        self.events = Events()
        self.image_chunks = image_chunks
        state_tokens = cache.states.spacing if cache.states else 0
        self.tier_cost = None
        if cost and self.kv.tier:
            self.tier_cost = TierCost(cost, cache.block_size, state_tokens)
        speculative = config.speculative
        self.depth = Depth(config, speculative, cost) if speculative else None
        self.num_preemptions = 0

    def _new_queue(self) -> WaitingQueue:
        if self.config.policy == "lpm":
            return LongestPrefixQueue(lambda request: len(self.kv.find_prefix(request)))
        return WaitingQueue()

    @property
    def num_waiting(self) -> int:
        """Return how many requests wait to be admitted."""
        return len(self.waiting) + len(self.unread)

    def may_admit(self) -> bool:
        """Return whether a waiting request could be admitted."""
        full = len(self.running) >= self.config.max_num_seqs
        waiting = self.num_waiting > 0
        if waiting and full and self.config.policy != "priority":
            waiting = bool(self.seats.owed())
        return waiting or bool(len(self.loading))

    def has_ready(self) -> bool:
        """Return whether there are tokens to compute that no step in flight has to sample first."""
        return self.may_admit() or bool(self.running.wanted().any())

    def stats(self) -> SchedulerStats:
        """Return the state as the front end reports it."""
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=self.num_waiting + len(self.loading),
            kv_blocks_used=self.kv.pool.num_used,
            kv_blocks_total=self.kv.pool.num_blocks,
            prefix_cache_queries=self.kv.prefix_queries,
            prefix_cache_hits=self.kv.prefix_hits,
            num_preemptions=self.num_preemptions,
            num_steps=self.steps.num_done,
            step_tokens=self.steps.num_tokens,
            host_tier=self.kv.tier.stats() if self.kv.tier else None,
            kv_blocks_cached=self.kv.pool.num_cached,
            spec_decoding=self.depth.stats if self.depth else None,
            encoded_tokens=self.image_chunks.num_encoded,
            num_loading=len(self.loading),
        )

    def check_integrity(self, requests: Mapping[str, Request]) -> None:
        """Assert all invariants that hold between steps; `requests` are all of the scheduler's."""
        self.kv.check_integrity()
        running = self.running
        running.check_integrity()
        self.steps.check_integrity()
        waiting = self.waiting.requests()
        assert len(waiting) == len(self.waiting), "waiting requests were miscounted"
        resumed = self.waiting.resumed
        assert resumed <= {r.request_id for r in waiting}, "a stream that goes on does not wait"
        others = self.unread.requests + self.loading.requests()
        queued = [r.request_id for r in running.requests + waiting + others]
        assert set(queued) == requests.keys(), "a request is in no queue"
        assert len(queued) == len(requests), "a request is in two queues"
        seats = len(running) + len(self.loading)
        assert seats <= self.config.max_num_seqs, "too many requests hold blocks"
        for request, capacity in zip(running.requests, running.capacity.tolist(), strict=True):
            held = len(self.kv.table(request.request_id)) * self.kv.block_size
            assert capacity == held, f"{request} has a wrong block count"
        if not requests:
            lent = self.kv.loans.num_lent if self.kv.loans else 0
            assert self.kv.pool.num_used == lent, "blocks are in use without a request"
            assert not (self.kv.states and self.kv.states.num_held), "a state slot leaked"
