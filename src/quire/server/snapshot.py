"""What the dashboard shows of an engine at one moment; `server.feed` sends one a second."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from quire import __version__
from quire.engine.histogram import Percentiles
from quire.engine.stats import EngineStats
from quire.engine.timeline import Lane
from quire.server.state import ServerState

MAX_LANES = 200
LANE_SECONDS = 60.0
"""How long a request that has ended keeps its lane."""


class Totals(msgspec.Struct):
    """State and counters since the start, under the names of `SchedulerStats` and `EngineStats`.

    They are the numbers of `/metrics`.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    kv_blocks_cached: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    step_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    rejected: int = 0
    finished: dict[str, int] = {}


class Snapshot(msgspec.Struct):
    """One event of the stream."""

    now: float
    """Seconds on the machine's monotonic clock, as all moments in it."""
    wall: float
    """The same moment in seconds since the epoch."""
    model: str
    version: str
    max_model_len: int
    max_num_seqs: int
    stats: Totals
    seconds: dict[str, float]
    """Where the time went since the start, by the names of `engine.times.PARTS`."""
    latency: dict[str, Percentiles]
    """Seconds, over the last minute: ttft, itl, e2e, queue (see `engine.histogram`)."""
    kv_map: dict[str, Any]
    lanes: list[Lane]
    prefix_tree: dict[str, Any]
    devices: list[Any]


def totals(stats: EngineStats) -> Totals:
    """The counters of `stats`."""
    found = Totals(
        prompt_tokens=stats.prompt_tokens,
        generation_tokens=stats.generation_tokens,
        rejected=stats.rejected,
        finished=dict(stats.finished),
    )
    if s := stats.scheduler:
        found.num_running = s.num_running
        found.num_waiting = s.num_waiting
        found.kv_blocks_used = s.kv_blocks_used
        found.kv_blocks_total = s.kv_blocks_total
        found.kv_blocks_cached = s.kv_blocks_cached
        found.prefix_cache_queries = s.prefix_cache_queries
        found.prefix_cache_hits = s.prefix_cache_hits
        found.num_preemptions = s.num_preemptions
        found.num_steps = s.num_steps
        found.step_tokens = s.step_tokens
    return found


def take_snapshot(server: ServerState) -> Snapshot:
    """The engine as it is now; call it in the event loop's thread."""
    engine, now = server.engine, time.monotonic()
    return Snapshot(
        now=now,
        wall=time.time(),
        model=server.model_names[0],
        version=__version__,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        stats=totals(engine.stats),
        seconds=engine.stats.seconds(),
        latency=engine.stats.recent.percentiles(now),
        kv_map={"num_blocks": 0, "runs": [], "owners": []},
        lanes=[t.lane() for t in engine.timelines.recent(now - LANE_SECONDS, MAX_LANES)],
        prefix_tree={"nodes": []},
        devices=[],
    )
