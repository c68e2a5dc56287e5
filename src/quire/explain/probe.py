"""Reads a running engine's counters over a window, in its front end's process."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace
from itertools import compress
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from quire.core.messages import StageStats
from quire.explain import surroundings
from quire.explain.evidence import CORE, OFFLINE, Window
from quire.explain.host import HostUse, Pauses, read_host, use_between
from quire.explain.standing import StateCount
from quire.explain.surroundings import Surroundings
from quire.metrics.histogram import TimedHistogram, quantile
from quire.metrics.requests import RequestMix, since
from quire.metrics.stats import EngineStats
from quire.system.proc import family
from quire.system.records import dataclass

N = TypeVar("N", int, float)
_OF_CORE = (
    *("steps", "preemptions", "loaded_blocks", "unsaved_blocks"),
    *("drafted_passes", "draft_tokens", "accepted_tokens", "draft_seconds"),
)
"""Counts that restart at 0 with a new core, like the seconds of `CORE`."""

LOOK_SECONDS = 0.04
"""Least time between two looks at the states of the processes."""


@dataclass(frozen=True, slots=True)
class _Totals:
    """Counters since the engine's start."""

    moment: float
    restarts: int
    seconds: dict[str, float]
    counts: dict[str, Any]
    sizes: TimedHistogram
    lags: list[int]
    latencies: list[int]
    mix: RequestMix
    ended_mix: RequestMix
    refused: Counter[str]
    polls: Counter[str]
    stages: list[StageStats]


class _Gauges:
    """Means and maxima of the gauges from `first` on, by the names of `Window`."""

    def __init__(self, first: _Totals) -> None:
        self.first = first
        self._sums: Counter[str] = Counter()
        self._sampled = 0.0
        self.most: dict[str, Any] = {}

    def add(self, stats: EngineStats, elapsed: float) -> None:
        """Add the gauges of `elapsed` seconds."""
        s, now = stats.scheduler, {"in_flight": float(stats.sequences())}
        most: dict[str, float] = {"most_in_flight": stats.sequences()}
        if stats.adapters is not None:
            use = stats.adapters()
            most["adapters"] = len(use.running | use.waiting)
        if s is not None:
            kv = stats.kv_cache_usage
            now |= {"running": s.num_running, "waiting": s.num_waiting - s.num_loading}
            now |= {"loading": s.num_loading, "kv_share": kv}
            most |= {"demand": s.num_running + s.num_waiting, "kv_peak": kv}
            most["kv_held"] = kv + s.kv_blocks_cached / max(1, s.kv_blocks_total)
        self._sampled += elapsed
        self._sums.update({name: value * elapsed for name, value in now.items()})
        self.most |= {name: max(self.most.get(name, 0), value) for name, value in most.items()}

    def means(self) -> dict[str, Any]:
        """Return the gauges' means over the sampled time."""
        return {name: total / max(1e-9, self._sampled) for name, total in self._sums.items()}


class Watched(NamedTuple):
    """What a probe saw; see `Evidence`."""

    window: Window
    halves: list[Window]
    host: HostUse | None
    surroundings: Surroundings


class Probe:
    """A window that starts with the constructor. Call `sample` as often as the gauges change.

    Args:
        now: seconds of the monotonic clock, which the core uses, too.
    """

    def __init__(self, stats: EngineStats, now: Callable[[], float] = time.monotonic) -> None:
        self._stats = stats
        self._now = now
        self._host = read_host()
        self._system = surroundings.read()
        self._states = StateCount(family(os.getpid())[1:])
        first = self._totals()
        self._last_sample = first.moment
        self._all, self._half = _Gauges(first), _Gauges(first)
        self._looked = first.moment
        self._pauses = Pauses()
        self._halves: list[Window] = []

    def sample(self, due: float | None = None) -> None:
        """Add the gauges, weighted by the time since the last sample.

        Args:
            due: seconds after the last sample at which the event loop should call this one.
        """
        now = self._now()
        elapsed, self._last_sample = now - self._last_sample, now
        self._pauses.add(elapsed, due)
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._states.sample()
        for gauges in (self._all, self._half):
            gauges.add(self._stats, elapsed)

    @property
    def ended_steps(self) -> int | None:
        """Return how many steps have ended since the start; None if no request is in flight."""
        s = self._stats.scheduler
        steps = max(0, (s.num_steps if s else 0) - self._all.first.counts["steps"])
        return steps if self._stats.in_flight() else None

    def split(self) -> None:
        """End the first half of the window."""
        self.sample()
        last = self._totals()
        self._halves.append(self._window(self._half, last))
        self._half = _Gauges(last)

    def end(self) -> Watched:
        """Return the activity since the start."""
        self.sample()
        last = self._totals()
        halves = [*self._halves, self._window(self._half, last)] if self._halves else []
        requests = since(self._stats.recorded, self._all.first.moment)
        window = msgspec.structs.replace(self._window(self._all, last), arrivals=requests)
        system = surroundings.read()
        around = surroundings.between(self._system, system, window.seconds, self._states.share)
        around = msgspec.structs.replace(
            around,
            halted=self._states.most,
            paused=self._pauses.seconds / window.seconds,
            standing=self._states.standing(),
        )
        return Watched(window, halves, use_between(self._host, read_host()), around)

    def _window(self, gauges: _Gauges, last: _Totals) -> Window:
        first = gauges.first
        lost = last.counts["steps"] < first.counts["steps"]  # and not yet replaced
        if lost or last.restarts > first.restarts:
            first = replace(
                first,
                seconds=first.seconds | dict.fromkeys(CORE, 0.0),
                counts=first.counts | dict.fromkeys(_OF_CORE, 0),
                stages=[],
            )
        counts = {name: count - first.counts[name] for name, count in last.counts.items()}
        parts = {name: s - first.seconds[name] for name, s in last.seconds.items()}
        scheduler, stats = self._stats.scheduler, self._stats
        latency = stats.inter_token_latency.bounds, _less(last.latencies, first.latencies)
        lags, before, after = _less(last.lags, first.lags), first.sizes, last.sizes
        sizes = _less(after.counts, before.counts)
        window = Window(
            seconds=max(1e-9, last.moment - first.moment),
            parts=parts,
            step_sizes=[
                (tokens / count, count)
                for tokens, count in zip(_less(after.sums, before.sums), sizes, strict=True)
                if count
            ],
            step_seconds=list(compress(_less(after.seconds, before.seconds), sizes)),
            step_rest=list(compress(_less(after.rest, before.rest), sizes)),
            computed_tokens=round(after.total - before.total),
            kv_blocks=scheduler.kv_blocks_total if scheduler else 0,
            loop_lag_p99=quantile(0.99, stats.event_loop_lag.bounds, lags) or 0.0,
            itl_p50=quantile(0.5, *latency) or 0.0,
            itl_p99=quantile(0.99, *latency) or 0.0,
            mix=last.mix.since(first.ended_mix),
            refused=dict(last.refused - first.refused),
            polls=dict(last.polls - first.polls),
            stages=_stages(first.stages, last.stages),
            **gauges.means(),
            **gauges.most,
            **counts,
        )
        # The gauges are those of the latest step, which may have ended before these requests came.
        busy = stats.in_flight() > 0 or (scheduler is not None and scheduler.num_running > 0)
        core = OFFLINE if stats.front.offline else CORE
        return _whole(window, core, "model" if busy else "idle")

    def _totals(self) -> _Totals:
        stats, s = self._stats, self._stats.scheduler
        tier = s.host_tier if s else None
        drafts = s.spec_decoding if s else None
        counts = {
            "steps": s.num_steps if s else 0,
            "preemptions": s.num_preemptions if s else 0,
            "drafted_passes": drafts.num_drafts if drafts else 0,
            "draft_tokens": drafts.num_draft_tokens if drafts else 0,
            "accepted_tokens": drafts.num_accepted_tokens if drafts else 0,
            "draft_seconds": drafts.draft_seconds if drafts else 0.0,
            "loaded_blocks": tier.loaded + tier.swapped_in if tier else 0,
            "unsaved_blocks": tier.unsaved if tier else 0,
            "requests": stats.time_to_first_token.count,
            "finished": stats.e2e_request_latency.count,
            "prompt_tokens": stats.prompt_tokens,
            "generation_tokens": stats.generation_tokens,
            "cached_tokens": stats.cached_tokens,
            "repeated_tokens": stats.repeated_tokens,
            "rejected": stats.rejected,
            "ended": stats.finished.total(),
            "aborted": stats.finished["abort"],
            "cut": stats.finished["length"],
            "aborted_tokens": stats.aborted_tokens,
            "slow_outputs": stats.slow_outputs,
            "scrape_seconds": stats.scrape_seconds,
        }
        return _Totals(
            self._now(),
            stats.restarts,
            stats.seconds(),
            counts,
            deepcopy(stats.iteration_tokens),
            list(stats.event_loop_lag.counts),
            list(stats.inter_token_latency.counts),
            copy(stats.mix),
            copy(stats.ended_mix),
            stats.refused.copy(),
            stats.polls.copy(),
            deepcopy(s.stages) if s else [],
        )


def _stages(first: list[StageStats], last: list[StageStats]) -> list[StageStats]:
    """Return what the stages did in between; `first` is empty if all of it was."""
    before = first or [StageStats()] * len(last)
    columns = (map(astuple, pair) for pair in zip(before, last, strict=False))
    return [StageStats(*(b - a for a, b in zip(*pair, strict=True))) for pair in columns]


def _less(last: list[N], first: list[N]) -> list[N]:
    return [b - a for a, b in zip(first, last, strict=True)]


def _whole(window: Window, core: tuple[str, ...], rest: str) -> Window:
    """Return the window with the time since the core's last report added to part `rest`.

    The core reports with each step's outputs, so an unfinished wait or step is not in the counters.
    """
    missing = window.seconds - sum(window.parts.get(name, 0.0) for name in core)
    parts = dict(window.parts)
    parts[rest] = parts.get(rest, 0.0) + max(0.0, missing)
    return msgspec.structs.replace(window, parts=parts)
