"""Several replicas of an engine are judged as one: the mean of them."""

from __future__ import annotations

import statistics
from math import ceil

import msgspec

from quire.explain.evidence import Evidence, Window
from quire.explain.host import HostUse
from quire.explain.report import Change

_COUNTS = (
    *("steps", "computed_tokens", "requests", "finished", "preemptions", "demand", "kv_blocks"),
    "most_in_flight",
    *("prompt_tokens", "generation_tokens", "cached_tokens", "repeated_tokens"),
    *("ended", "aborted", "cut", "aborted_tokens", "slow_outputs", "loaded_blocks"),
    *("unsaved_blocks", "drafted_passes", "draft_tokens", "accepted_tokens"),
)
"""What the window adds up over all replicas. Seconds of the core are a mean already."""


def mean_replica(evidence: Evidence) -> Evidence:
    """Return the evidence of the mean replica, with its part of the machine.

    What the API process does remains that of the whole engine.
    """
    count = len(evidence.args.replicas)
    if count == 1:
        return evidence
    around = evidence.surroundings
    if around is not None:
        around = msgspec.structs.replace(
            around, throttled=around.throttled / count, disk_wait=around.disk_wait / count
        )
    return msgspec.structs.replace(
        evidence,
        window=_window(evidence.window, count),
        halves=[_window(half, count) for half in evidence.halves],
        cores=max(1, evidence.cores // count),
        host=_host(evidence.host, count),
        surroundings=around,
    )


def of_all(change: Change, count: int) -> Change:
    """Return a change of a replica as the engine's flag, which counts the threads of all."""
    name, _, threads = change.flag.partition(" ")
    if name != "--num-threads":
        return change
    fields = {key: count * int(threads) for key in change.fields}
    return msgspec.structs.replace(change, flag=f"{name} {count * int(threads)}", fields=fields)


def _window(w: Window, count: int) -> Window:
    mix = msgspec.structs.replace(
        w.mix,
        salted_tokens=ceil(w.mix.salted_tokens / count),
        shifted_tokens=ceil(w.mix.shifted_tokens / count),
    )
    return msgspec.structs.replace(
        w,
        step_sizes=[(tokens, ceil(steps / count)) for tokens, steps in w.step_sizes],
        in_flight=w.in_flight / count,
        running=w.running / count,
        waiting=w.waiting / count,
        loading=w.loading / count,
        draft_seconds=w.draft_seconds / count,
        mix=mix,
        arrivals=w.arrivals[::count],
        **{name: ceil(getattr(w, name) / count) for name in _COUNTS},
    )


def _host(host: HostUse | None, count: int) -> HostUse | None:
    """Return the use with each `count` threads as one: those that ran alike do alike work."""
    if host is None:
        return None
    waits = [statistics.fmean(host.waits[i : i + count]) for i in range(0, len(host.waits), count)]
    return msgspec.structs.replace(host, waited=host.waited / count, waits=waits)
