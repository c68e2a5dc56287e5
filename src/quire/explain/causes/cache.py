"""Causes in the KV cache: too small, preemption, missed prefixes."""

from __future__ import annotations

import math

from quire.explain.causes.case import (
    WORTH,
    Case,
    Suspect,
    advice,
    saving,
    setting,
    small_batch,
    suspect,
)
from quire.explain.evidence import Window
from quire.explain.report import Change
from quire.models.memory import state_bytes

FULL = 0.6
"""If a larger share of the blocks is in use and seats are free, waiting requests wait for blocks:
the rest is reserved for the running ones."""
FULL_PEAK = 0.9
"""Largest share of the blocks in use from which half of `FULL` on average is enough: on a starved
machine the gauges lag."""
EVICTING = 0.9
"""Share of the blocks in use or cached, below which none is evicted."""
FULL_BATCH = 0.95
"""Share of the seats in use from which none is free: the gauges are sampled."""
STORM = 2.0
"""Preemptions per finished request from which they, and not the waiting, are the news."""


def kv_cache_too_small(case: Case) -> Suspect | None:
    """Requests wait for blocks although the batch has seats."""
    w, seats = case.window, case.seats
    if not _lacks_blocks(case):
        return None
    changes = [_blocks_for_all(case)]
    gain = changes[0].estimated_gain
    if case.config.kv_cache_dtype not in ("int8", "int4") and not case.args.num_gpu_blocks_override:
        changes.append(_int8(saving(min(gain, case.estimate.batch_gain(2 * w.running)))))
    return suspect(
        f"The KV cache is {w.kv_share:.0%} full: {w.running:.1f} sequences run, {w.waiting:.1f} "
        f"wait, and {seats - w.running:.0f} of {seats} seats are free"
        + (f"; {w.preemptions} were preempted." if w.preemptions else "."),
        saving(gain),
        *changes,
        floor=small_batch(w),
    )


def preemption(case: Case) -> Suspect | None:
    """Sequences are preempted and computed again."""
    w = case.window
    cost = share = _preemption_cost(case)
    if not w.preemptions:
        return None
    if w.kv_peak < FULL_PEAK and not blocks_are_full(w):
        return _preemption_for_others(case, cost)
    fits = max(1, math.floor(w.running * 0.8))
    more = _more_blocks(case, math.ceil(w.kv_blocks * 1.5), cost)
    if w.preemptions >= STORM * max(1, w.finished) and _lacks_blocks(case):
        more = _blocks_for_all(case)
        share = saving(more.estimated_gain)
    why = "runs only as many sequences as keep their blocks to the end"
    return suspect(
        f"After {w.preemptions} preemptions in {w.seconds:.1f} s, {w.recomputed_tokens} tokens "
        f"were computed again, which took {cost:.0%} of the time.",
        share,
        more,
        setting(why, cost / 2, max_num_seqs=fits),
    )


def _preemption_for_others(case: Case, cost: float) -> Suspect | None:
    """Return that sequences are preempted although blocks are free: for a request of a client with
    few seats, or of a higher priority."""
    w, seats = case.window, case.seats
    wanted = max(seats + 1, round(min(4.0 * seats, w.running + w.waiting)))
    return suspect(
        f"{w.preemptions} sequences gave their seat to a client that held fewer, or to a higher "
        f"priority. {w.recomputed_tokens} tokens were computed again, which took {cost:.0%} of "
        "the time.",
        cost,
        setting("has seats for all of them", cost, **case.seating(wanted)),
    )


def prefix_misses(case: Case) -> Suspect | None:
    """Prompts share a prefix and are computed anyway."""
    e, w = case.evidence, case.window
    missed = _missed(w)
    if not missed:
        return None
    saved = case.estimate.cached_share(missed)
    if not e.config.enable_prefix_caching:
        best = setting("computes a shared prefix once", saved, enable_prefix_caching=True)
        what = "prefix caching is off"
    elif w.kv_held < EVICTING:
        return None  # the prefix was still being computed for another request
    elif w.kv_peak > FULL_PEAK or not e.args.kv_offloading_size:
        best = _offload("blocks", saved)
        what = "their blocks had been evicted"
    else:
        return None
    return suspect(
        f"{missed:,} of {w.prompt_tokens:,} prompt tokens, {missed / w.prompt_tokens:.0%}, "
        f"repeated the beginning of an earlier prompt and were computed again: {what}.",
        saved,
        best,
    )


def failed_writes(case: Case) -> Suspect | None:
    """KV blocks cannot be written to files, so prompts that need them are computed again."""
    w, folder = case.window, case.args.kv_offloading_dir
    if not w.unsaved_blocks:
        return None
    lost = case.estimate.cached_share(_missed(w))
    return suspect(
        f"{w.unsaved_blocks:,} KV blocks could not be written to {folder} in {w.seconds:.1f} s; "
        "the log has the system's reason (a full disk, a lost mount, missing rights).",
        lost,
        advice(f"room in {folder}, or another --kv-offloading-dir", "keeps the blocks", lost),
        floor=WORTH,  # a fault, whatever it costs now
    )


def state_misses(case: Case) -> Suspect | None:
    """Prefixes are cached without the states of recurrent layers behind them."""
    e, w = case.evidence, case.window
    missed, args = _missed(w), e.args
    # A prefix that is still being computed is missed by those that run beside its first request.
    beside = 2.0 * (w.running + w.waiting) * w.prompt_tokens / max(1, w.requests)
    cached = e.config.enable_prefix_caching and w.kv_held < EVICTING
    if not cached or not state_bytes(e.config.model) or missed <= max(w.cached_tokens, beside):
        return None
    saved = case.estimate.cached_share(missed)
    changes = [_more_blocks(case, 2 * w.kv_blocks, saved)]
    if not args.kv_offloading_size:
        changes.insert(0, _offload("states", saved))
    return suspect(
        f"{missed:,} of {w.prompt_tokens:,} prompt tokens, {missed / w.prompt_tokens:.0%}, "
        "repeated the beginning of an earlier prompt and were computed again: its blocks are "
        "cached, but the states of the recurrent layers behind it had no slot.",
        saved,
        *changes,
    )


def _offload(what: str, saved: float) -> Change:
    """Return host memory for evicted blocks or states as a change."""
    return setting(f"saves evicted {what} in host memory", saved, kv_offloading_size=2.0)


def _missed(w: Window) -> int:
    """Return the prompt tokens that repeated an earlier prompt's and were computed again."""
    return min(max(0, w.repeated_tokens - w.cached_tokens), w.prompt_tokens - w.cached_tokens)


def blocks_are_full(w: Window) -> bool:
    """Return whether so many blocks are in use that a waiting request may wait for them."""
    return w.kv_share >= FULL or (w.kv_peak >= FULL_PEAK and w.kv_share >= FULL / 2)


def _lacks_blocks(case: Case) -> bool:
    """Return whether requests wait for blocks although the batch has seats."""
    w, seats = case.window, case.seats
    return w.waiting >= 0.5 and w.running <= FULL_BATCH * seats and blocks_are_full(w)


def _blocks_for_all(case: Case) -> Change:
    """Return a KV cache with blocks for the waiting requests, too."""
    w = case.window
    wanted = min(float(case.seats), max(w.running + w.waiting, w.demand))
    gain = case.estimate.batch_gain(wanted, _preemption_cost(case))
    return _more_blocks(case, math.ceil(w.kv_blocks * wanted / max(w.running, 1.0)), saving(gain))


def _preemption_cost(case: Case) -> float:
    """Return the share of the window spent on tokens computed again."""
    return case.estimate.recomputing_share(case.window.recomputed_tokens)


def _more_blocks(case: Case, blocks: int, saved: float) -> Change:
    """Return a larger KV cache, by the flag that this user already sets."""
    args, now = case.args, case.window.kv_blocks
    why = f"holds {blocks:,} blocks in place of {now:,}"
    if args.num_gpu_blocks_override is not None:
        return setting(why, saved, num_gpu_blocks_override=blocks)
    if args.kv_cache_memory_bytes is not None:
        size = math.ceil(args.kv_cache_memory_bytes * blocks / max(1, now) / 2**20) * 2**20
        return setting(why, saved, kv_cache_memory_bytes=size)
    if (share := args.memory_share(case.config.device)) < 0.85:
        more = min(0.9, round(share + 0.2, 2))
        return setting("gives the KV cache more memory", saved, gpu_memory_utilization=more)
    return _int8(saved)


def _int8(saved: float) -> Change:
    """Return an int8 KV cache as a change."""
    why = "holds nearly twice the tokens in the same memory"
    return setting(why, saved, kv_cache_dtype="int8")
