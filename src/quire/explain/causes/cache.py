"""Causes in the KV cache: too small, preemption, missed prefixes."""

from __future__ import annotations

import math

from quire.explain.bounds import gain_of
from quire.explain.causes.case import (
    WORTH,
    Case,
    Kind,
    Suspect,
    change,
    saving,
    small_batch,
    suspect,
)
from quire.explain.evidence import Window
from quire.explain.report import THROUGHPUT, Change
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
    w, seats = case.window, case.evidence.config.scheduler.max_num_seqs
    if not _lacks_blocks(case):
        return None
    more = _blocks_for_all(case)
    return suspect(
        "kv_cache_too_small",
        f"The KV cache is {w.kv_share:.0%} full: {w.running:.1f} sequences run, {w.waiting:.1f} "
        f"wait, and {seats - w.running:.0f} of {seats} seats are free"
        + (f"; {w.preemptions} were preempted." if w.preemptions else "."),
        saving(more.estimated_gain),
        [more, *_int8(case, more.estimated_gain)],
        Kind.PROVEN,
        small_batch(w),
        kv_share=w.kv_share,
        kv_blocks=w.kv_blocks,
        running=w.running,
        waiting=w.waiting,
        max_num_seqs=seats,
        preemptions=w.preemptions,
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
    more = _more_blocks(case, math.ceil(w.kv_blocks * 1.5), gain_of(cost))
    if w.preemptions >= STORM * max(1, w.finished) and _lacks_blocks(case):
        more = _blocks_for_all(case)
        share = saving(more.estimated_gain)
    why = "runs only as many sequences as keep their blocks to the end"
    return suspect(
        "preemption",
        f"After {w.preemptions} preemptions in {w.seconds:.1f} s, {w.recomputed_tokens} tokens "
        f"were computed again, which took {cost:.0%} of the time.",
        share,
        [more, change(f"--max-num-seqs {fits}", why, cost / 2, max_num_seqs=fits)],
        Kind.PROVEN,
        preemptions=w.preemptions,
        recomputed_tokens=w.recomputed_tokens,
    )


def _preemption_for_others(case: Case, cost: float) -> Suspect | None:
    """Return that sequences are preempted although blocks are free: for a request of a client with
    few seats, or of a higher priority."""
    w, seats = case.window, case.evidence.config.scheduler.max_num_seqs
    wanted = max(seats + 1, round(min(4.0 * seats, w.running + w.waiting)))
    return suspect(
        "preemption",
        f"{w.preemptions} sequences gave their seat to a client that held fewer, or to a higher "
        f"priority. {w.recomputed_tokens} tokens were computed again, which took {cost:.0%} of "
        "the time.",
        cost,
        [
            change(
                f"--max-num-seqs {wanted}", "has seats for all of them", cost, max_num_seqs=wanted
            )
        ],
        Kind.PROVEN,
        preemptions=w.preemptions,
        recomputed_tokens=w.recomputed_tokens,
    )


def prefix_misses(case: Case) -> Suspect | None:
    """Prompts share a prefix and are computed anyway."""
    e, w = case.evidence, case.window
    missed = _missed(w)
    if not missed:
        return None
    saved = case.estimate.cached_share(missed)
    if not e.config.enable_prefix_caching:
        best = change(
            "--enable-prefix-caching",
            "computes a shared prefix once",
            saved,
            enable_prefix_caching=True,
        )
        what = "prefix caching is off"
    elif w.kv_held < EVICTING:
        return None  # the prefix was still being computed for another request
    elif w.kv_peak > FULL_PEAK or not e.args.kv_offloading_size:
        best = _offload("blocks", saved)
        what = "their blocks had been evicted"
    else:
        return None
    return suspect(
        "prefix_misses",
        f"{missed:,} of {w.prompt_tokens:,} prompt tokens, {missed / w.prompt_tokens:.0%}, "
        f"repeated the beginning of an earlier prompt and were computed again: {what}.",
        saved,
        [best],
        Kind.PROVEN,
        repeated_tokens=w.repeated_tokens,
        cached_tokens=w.cached_tokens,
        prompt_tokens=w.prompt_tokens,
    )


def failed_writes(case: Case) -> Suspect | None:
    """KV blocks cannot be written to files, so prompts that need them are computed again."""
    w, folder = case.window, case.evidence.args.kv_offloading_dir
    if not w.unsaved_blocks:
        return None
    lost = case.estimate.cached_share(_missed(w))
    return suspect(
        "failed_writes",
        f"{w.unsaved_blocks:,} KV blocks could not be written to {folder} in {w.seconds:.1f} s; "
        "the log has the system's reason (a full disk, a lost mount, missing rights).",
        lost,
        [change(f"room in {folder}, or another --kv-offloading-dir", "keeps the blocks", lost)],
        Kind.PROVEN,
        WORTH,  # a fault, whatever it costs now
        unsaved_blocks=w.unsaved_blocks,
        loaded_blocks=w.loaded_blocks,
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
    changes = [_more_blocks(case, 2 * w.kv_blocks, gain_of(saved))]
    if not args.kv_offloading_size:
        changes.insert(0, _offload("states", saved))
    return suspect(
        "state_misses",
        f"{missed:,} of {w.prompt_tokens:,} prompt tokens, {missed / w.prompt_tokens:.0%}, "
        "repeated the beginning of an earlier prompt and were computed again: its blocks are "
        "cached, but the states of the recurrent layers behind it had no slot.",
        saved,
        changes,
        Kind.PROVEN,
        repeated_tokens=w.repeated_tokens,
        cached_tokens=w.cached_tokens,
        kv_held=w.kv_held,
    )


def _offload(what: str, saved: float) -> Change:
    """Return host memory for evicted blocks or states as a change."""
    why = f"saves evicted {what} in host memory"
    return change("--kv-offloading-size 2", why, saved, kv_offloading_size=2.0)


def _missed(w: Window) -> int:
    """Return the prompt tokens that repeated an earlier prompt's and were computed again."""
    return min(max(0, w.repeated_tokens - w.cached_tokens), w.prompt_tokens - w.cached_tokens)


def blocks_are_full(w: Window) -> bool:
    """Return whether so many blocks are in use that a waiting request may wait for them."""
    return w.kv_share >= FULL or (w.kv_peak >= FULL_PEAK and w.kv_share >= FULL / 2)


def _lacks_blocks(case: Case) -> bool:
    """Return whether requests wait for blocks although the batch has seats."""
    w, seats = case.window, case.evidence.config.scheduler.max_num_seqs
    return w.waiting >= 0.5 and w.running <= FULL_BATCH * seats and blocks_are_full(w)


def _blocks_for_all(case: Case) -> Change:
    """Return a KV cache with blocks for the waiting requests, too."""
    w, seats = case.window, case.evidence.config.scheduler.max_num_seqs
    wanted = min(float(seats), max(w.running + w.waiting, w.demand))
    gain = case.estimate.batch_gain(wanted, _preemption_cost(case))
    return _more_blocks(case, math.ceil(w.kv_blocks * wanted / max(w.running, 1.0)), gain)


def _preemption_cost(case: Case) -> float:
    """Return the share of the window spent on tokens computed again."""
    return case.estimate.recomputing_share(case.window.recomputed_tokens)


def _more_blocks(case: Case, blocks: int, gain: float) -> Change:
    """Return a larger KV cache, by the flag that this user already sets."""
    args, w = case.evidence.args, case.window
    why = f"holds {blocks:,} blocks in place of {w.kv_blocks:,}"
    fields: dict[str, bool | int | float | str | None]
    if args.num_gpu_blocks_override is not None:
        flag, fields = f"--num-gpu-blocks-override {blocks}", {"num_gpu_blocks_override": blocks}
    elif args.kv_cache_memory_bytes is not None:
        size = math.ceil(args.kv_cache_memory_bytes * blocks / max(1, w.kv_blocks) / 2**20) * 2**20
        flag = f"--kv-cache-memory-bytes {size // 2**20}MiB"
        fields = {"kv_cache_memory_bytes": size}
    elif (share := args.memory_share(case.evidence.config.device)) < 0.85:
        more = min(0.9, round(share + 0.2, 2))
        flag, fields = f"--gpu-memory-utilization {more}", {"gpu_memory_utilization": more}
        why = "gives the KV cache more memory"
    else:
        flag, fields = "--kv-cache-dtype int8", {"kv_cache_dtype": "int8"}
        why = "holds nearly twice the tokens in the same memory"
    return Change(flag, why, THROUGHPUT, gain, fields)


def _int8(case: Case, gain: float) -> list[Change]:
    """Return an int8 KV cache as a change, unless it was already suggested."""
    args = case.evidence.args
    kept = case.evidence.config.kv_cache_dtype
    if kept in ("int8", "int4") or args.num_gpu_blocks_override is not None:
        return []
    doubled = min(gain, case.estimate.batch_gain(2 * case.window.running))
    why = "holds nearly twice the tokens in the same memory"
    fields: dict[str, bool | int | float | str | None] = {"kv_cache_dtype": "int8"}
    return [Change("--kv-cache-dtype int8", why, THROUGHPUT, doubled, fields)]
