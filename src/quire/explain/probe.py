"""Reads a running engine's counters over a window, in its front end's process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from quire.explain.evidence import CORE, OFFLINE, Window
from quire.explain.host import HostUse, read_host, use_between
from quire.metrics.histogram import Histogram
from quire.metrics.stats import EngineStats

_OF_CORE = ("steps", "preemptions")
"""Counts that restart at 0 with a new core, like the seconds of `CORE`."""


@dataclass(frozen=True, slots=True)
class _Totals:
    """Counters since the engine's start."""

    moment: float
    restarts: int
    seconds: dict[str, float]
    counts: dict[str, int]
    sizes: list[int]
    computed: float
    lags: list[int]


class Probe:
    """A window that starts with the constructor. Call `sample` as often as the gauges change.

    Args:
        now: seconds of the monotonic clock, which the core uses, too.
    """

    def __init__(self, stats: EngineStats, now: Callable[[], float] = time.monotonic) -> None:
        self._stats = stats
        self._now = now
        self._host = read_host()
        self._first = self._totals()
        self._last_sample = self._first.moment
        self._sums = dict.fromkeys(("running", "waiting", "kv_share"), 0.0)
        self._sampled = 0.0
        self._kv_peak = 0.0
        self._demand = 0

    def sample(self) -> None:
        """Add the gauges, weighted by the time since the last sample."""
        now = self._now()
        elapsed, self._last_sample = now - self._last_sample, now
        s = self._stats.scheduler
        self._sampled += elapsed
        if s is None:
            return
        kv = self._stats.kv_cache_usage
        self._kv_peak = max(self._kv_peak, kv)
        self._demand = max(self._demand, s.num_running + s.num_waiting)
        for name, value in (
            ("running", s.num_running), ("waiting", s.num_waiting), ("kv_share", kv),
        ):  # fmt: skip
            self._sums[name] += value * elapsed

    def end(self) -> tuple[Window, HostUse | None]:
        """Return the activity since the start."""
        self.sample()
        first, last = self._first, self._totals()
        host = use_between(self._host, read_host())
        lost = last.counts["steps"] < first.counts["steps"]  # and not yet replaced
        if lost or last.restarts > first.restarts:
            first = replace(
                first,
                seconds=first.seconds | dict.fromkeys(CORE, 0.0),
                counts=first.counts | dict.fromkeys(_OF_CORE, 0),
            )
        counts = {name: count - first.counts[name] for name, count in last.counts.items()}
        parts = {name: s - first.seconds[name] for name, s in last.seconds.items()}
        scheduler = self._stats.scheduler
        window = Window(
            seconds=max(1e-9, last.moment - first.moment),
            parts=parts,
            step_sizes=_sizes(self._stats.iteration_tokens, first, last),
            computed_tokens=round(last.computed - first.computed),
            demand=self._demand,
            kv_peak=self._kv_peak,
            kv_blocks=scheduler.kv_blocks_total if scheduler else 0,
            loop_lag_p99=_p99(self._stats.event_loop_lag.bounds, first.lags, last.lags),
            running=self._mean("running"),
            waiting=self._mean("waiting"),
            kv_share=self._mean("kv_share"),
            **counts,
        )
        busy = scheduler is not None and scheduler.num_running > 0
        core = OFFLINE if self._stats.front.offline else CORE
        return _whole(window, core, "model" if busy else "idle"), host

    def _mean(self, name: str) -> float:
        """Return a gauge's mean over the sampled time."""
        return self._sums[name] / max(1e-9, self._sampled)

    def _totals(self) -> _Totals:
        stats, s = self._stats, self._stats.scheduler
        counts = {
            "steps": s.num_steps if s else 0,
            "preemptions": s.num_preemptions if s else 0,
            "requests": stats.time_to_first_token.count,
            "finished": stats.e2e_request_latency.count,
            "prompt_tokens": stats.prompt_tokens,
            "generation_tokens": stats.generation_tokens,
            "cached_tokens": stats.cached_tokens,
            "repeated_tokens": stats.repeated_tokens,
            "rejected": stats.rejected,
            "slow_outputs": stats.slow_outputs,
        }
        sizes = stats.iteration_tokens
        return _Totals(
            self._now(),
            stats.restarts,
            stats.seconds(),
            counts,
            list(sizes.counts),
            sizes.total,
            list(stats.event_loop_lag.counts),
        )


def _whole(window: Window, core: tuple[str, ...], rest: str) -> Window:
    """Return the window with the time since the core's last report added to part `rest`.

    The core reports with each step's outputs, so an unfinished wait or step is not in the counters.
    """
    missing = window.seconds - sum(window.parts.get(name, 0.0) for name in core)
    parts = dict(window.parts)
    parts[rest] = parts.get(rest, 0.0) + max(0.0, missing)
    return msgspec.structs.replace(window, parts=parts)


def _sizes(histogram: Histogram, first: _Totals, last: _Totals) -> list[tuple[float, int]]:
    """Return steps by tokens: the middle of each bucket, scaled to the true sum."""
    counts = [b - a for a, b in zip(first.sizes, last.sizes, strict=True)]
    bounds = [0.0, *histogram.bounds, 2 * histogram.bounds[-1]]
    # Bounds are integers and inclusive: the bucket from 5 to 10 holds 6 … 10.
    middles = [(low + 1 + high) / 2 for low, high in pairwise(bounds)]
    guess = sum(m * n for m, n in zip(middles, counts, strict=True))
    scale = (last.computed - first.computed) / guess if guess else 1.0
    return [(max(1.0, m * scale), n) for m, n in zip(middles, counts, strict=True) if n]


def _p99(bounds: tuple[float, ...], first: list[int], last: list[int]) -> float:
    counts = [b - a for a, b in zip(first, last, strict=True)]
    total, seen = sum(counts), 0
    if not total:
        return 0.0
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        seen += count
        if seen >= 0.99 * total:
            return bound if bound < math.inf else bounds[-1]
    return bounds[-1]
