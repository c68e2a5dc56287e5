"""The scheduler of an engine core, from its configuration."""

from __future__ import annotations

from quire.core.config import CacheConfig, EngineConfig
from quire.executor.base import Executor
from quire.models.cost import first_guess
from quire.scheduler.scheduler import Scheduler


def new_scheduler(config: EngineConfig, executor: Executor, *, publishes: bool) -> Scheduler:
    """Return a scheduler over the executor's blocks; others get the cache's changes if it
    `publishes`."""
    cache = CacheConfig(
        config.block_size,
        executor.num_blocks,
        config.enable_prefix_caching,
        config.prefix_caching_hash_algo,
        config.prefix_caching_hash_seed,
        config.model.common_window,
        config.tiers,
        executor.states,
        report_changes=config.report_cache or publishes,
        report_tokens=publishes,
        first_block=config.shared_kv.first if config.shared_kv else None,
    )
    return Scheduler(config.scheduler, cache, first_guess(config), executor.lower_tiers)
