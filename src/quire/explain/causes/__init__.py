"""One function per cause: evidence in, a suspect or None out."""

from __future__ import annotations

from collections.abc import Callable

from quire.explain.causes.cache import kv_cache_too_small, preemption, prefix_misses
from quire.explain.causes.case import Case, Suspect
from quire.explain.causes.front import queueing, slow_client, tokenization
from quire.explain.causes.machine import (
    busy_neighbour,
    compute,
    few_threads,
    memory_bandwidth,
    wide_weights,
)
from quire.explain.causes.steps import dispatch_overhead, idle_gaps, rank_imbalance

CAUSES: tuple[Callable[[Case], Suspect | None], ...] = (
    dispatch_overhead,
    idle_gaps,
    rank_imbalance,
    few_threads,
    wide_weights,
    busy_neighbour,
    kv_cache_too_small,
    preemption,
    prefix_misses,
    queueing,
    tokenization,
    slow_client,
    memory_bandwidth,
    compute,
)
