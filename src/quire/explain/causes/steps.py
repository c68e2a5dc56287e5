"""Time lost in and between steps while there is work."""

from __future__ import annotations

import statistics

from quire.explain.causes.cache import FULL_BATCH, blocks_are_full
from quire.explain.causes.case import (
    FEW_CLIENTS,
    LATEST,
    MULTI_STEP,
    WORTH,
    Case,
    Kind,
    Suspect,
    advice,
    saving,
    setting,
    suspect,
)
from quire.explain.estimate import LONG_CHUNK
from quire.explain.report import ITL, Change

DISPATCHING = 0.1
"""Share of the time for dispatching from which a healthy engine would lose less."""
_HOST = ("schedule", "prepare", "update", "core_send")
"""The core's work for a step, without the model and sampling."""
SHORT_STRETCH = 1.2
"""--max-itl-stretch below which prompts wait for streams."""
TINY_CHUNK = 16
"""Tokens of a step that are too few for prompts on every machine."""
FEW_ACCEPTED = 0.15
"""Share of several drafts per pass below which no machine gains by them."""
LATE = 5.0
"""How much longer than usual the latest of a hundred tokens takes before it is a cause."""


def dispatch_overhead(case: Case) -> Suspect | None:
    """The host submits work more slowly than the kernels compute it."""
    e, w = case.evidence, case.window
    own = 1.0 - case.waited  # the rest is other processes' time, see `busy_neighbour`
    handing = own * _handing_over(case)
    between = min(_between_operations(case, own), own * case.model - handing)
    host = own * (w.share(*_HOST) - w.draft_seconds / w.seconds)
    if case.on_device:
        host = 0.0  # see `idle_gaps`
    lost = between + handing + host
    many = not 0 < w.demand <= FEW_CLIENTS
    changes = []
    if e.config.enforce_eager and between > 0:
        why = "replays the model's operations from a recorded plan, in one call"
        changes.append(setting(why, between, enforce_eager=False))
    once = handing + w.share("schedule", "update", "core_send")
    why = f"asks the scheduler once for {MULTI_STEP} tokens of each sequence"
    changes += _multi_step(case, why, once)
    if lost < 0.15:
        return None
    step = w.seconds / max(1, w.steps)
    return suspect(
        f"Of each step's {step * 1e3:.2f} ms the kernels compute {1 - lost:.0%}; "
        f"{between + handing:.0%} goes to dispatching their work, {host:.0%} to scheduling, "
        "preparing and reporting the step.",
        lost,
        *changes,
        # Of a tiny model the core's own work is a limit, as bandwidth is of a large one. So is
        # handing over the short steps of one or two clients.
        kind=Kind.WASTE if between + handing * many >= DISPATCHING else Kind.LIMIT,
    )


def idle_gaps(case: Case) -> Suspect | None:
    """The core is idle between two steps although requests run.

    So is a GPU while the host schedules and prepares the next step.
    """
    e, w = case.evidence, case.window
    waits = case.on_device and not e.config.async_scheduling
    between = ("receive", *_HOST) if waits else ("receive",)
    gap = w.share(*between) * (1.0 - case.waited)
    changes = _multi_step(case, f"leaves one gap in place of {MULTI_STEP}", gap)
    if not e.config.async_scheduling:
        why = "schedules the next step while this one is computed"
        changes.insert(0, setting(why, min(gap, case.model), async_scheduling=True))
    if gap < 0.1:
        return None
    milliseconds = 1e3 * w.share(*between) * w.seconds / max(1, w.steps)
    return suspect(
        f"For {milliseconds:.2f} ms between two steps nothing is computed, {gap:.0%} of the time, "
        f"although {w.running:.1f} sequences run.",
        gap,
        *sorted(changes, key=lambda c: -c.estimated_gain),
        kind=Kind.WASTE,
    )


def rank_imbalance(case: Case) -> Suspect | None:
    """One rank of a parallel engine makes the others wait."""
    profile = case.evidence.ops
    if profile is None or len(profile.rank_waits) < 2 or not profile.steps:
        return None
    means = [max(0.0, profile.model_seconds - s) / profile.steps for s in profile.rank_waits]
    slowest = max(range(len(means)), key=means.__getitem__)
    if not means[slowest]:
        return None
    # Ranks that share the work evenly would all take the mean.
    lost = case.model * (1.0 - statistics.fmean(means) / means[slowest])
    typical = statistics.median(means[:slowest] + means[slowest + 1 :])
    cores, ranks = case.evidence.cores, len(means)
    threads = ranks * max(1, cores // ranks)  # of all ranks together
    why = (
        f"gives each of the {ranks} ranks its own share of {cores} cores; other processes "
        "and slower cores may still slow one down"
    )
    return suspect(
        f"Rank {slowest} takes {means[slowest] * 1e3:.2f} ms per step and the others "
        f"{typical * 1e3:.2f} ms, so they wait {1 - typical / means[slowest]:.0%} of the model's "
        "time.",
        lost,
        # Without fields if it is what the engine has.
        advice(f"--num-threads {threads}", why, lost)
        if threads == case.config.num_threads
        else setting(why, lost, num_threads=threads),
        kind=Kind.WASTE,
    )


def needless_ranks(case: Case) -> Suspect | None:
    """Processes share the layers on a machine with one memory node."""
    e, profile = case.evidence, case.evidence.ops
    if e.config.tensor_parallel_size < 2 or e.config.device != "cpu":
        return None
    if e.surroundings is None or e.surroundings.nodes > 1:
        return None
    if profile is None or not profile.rank_waits:
        return None
    waited = min(1.0, statistics.fmean(profile.rank_waits) / max(1e-9, profile.model_seconds))
    # One process would wait for a core, too, and its threads for each other.
    lost = case.model * waited * (1.0 - case.waited)
    why = "computes with threads of one process, which wait for each other for less time"
    # No figure: the window cannot tell how much less. Seen: −45 to +60 % tokens/s.
    return suspect(
        f"{e.config.tensor_parallel_size} processes share each layer on a machine with one memory "
        f"node, and wait for each other {waited:.0%} of the model's time.",
        lost,
        setting(why, 0.0, tensor_parallel_size=1),
        floor=WORTH if lost >= WORTH else 0.0,
        kind=Kind.WASTE,
    )


def small_chunks(case: Case) -> Suspect | None:
    """Prompts are computed in chunks so small that each reads the weights for few tokens."""
    budget, stretch = case.args.max_num_batched_tokens, case.args.max_itl_stretch
    if budget is None:
        return _short_stretch(case) if stretch is not None and stretch < SHORT_STRETCH else None
    saved = case.estimate.chunk_saving(budget)
    w = case.window
    full = sum(count for tokens, count in w.step_sizes if tokens >= 0.8 * budget)
    if budget <= TINY_CHUNK and full >= 0.5 * w.steps and w.running <= 0.5 * budget:
        saved = max(saved, WORTH)  # a fault of the settings, whatever a busy machine makes of it
    why = "reads the weights once for more tokens of a prompt"
    return suspect(
        f"Prompts are computed in steps of {budget} tokens (--max-num-batched-tokens). Each step "
        "reads all weights.",
        saved,
        setting(why, saved, max_num_batched_tokens=LONG_CHUNK),
    )


def _short_stretch(case: Case) -> Suspect | None:
    """Return that prompts get few tokens of each step because streams may not slow down."""
    w, stretch = case.window, case.args.max_itl_stretch
    seats = case.seats
    if w.waiting < 0.5 or w.running > FULL_BATCH * seats or blocks_are_full(w):
        return None  # they wait for a seat or for blocks
    chunk = max(0, w.computed_tokens - w.generation_tokens) / max(1, w.steps)
    why = "computes prompts in longer chunks, so that fewer requests wait"
    # No figure: streams and prompts share the time. Seen: −17 to +45 % tokens/s.
    return suspect(
        f"Streams may slow down to {stretch:g} times their pace (--max-itl-stretch), so a step "
        f"computes {chunk:.0f} tokens of prompts, and {w.waiting:.1f} requests wait although seats "
        "and KV blocks are free.",
        w.waiting / (w.running + w.waiting),
        setting(why, 0.0, max_itl_stretch=1.5),
        floor=WORTH,
    )


def long_prompts(case: Case) -> Suspect | None:
    """Steps with long prompts delay the tokens of other requests; offline nobody waits for them."""
    args, w = case.args, case.window
    if case.evidence.offline:
        return None
    stretch = args.max_itl_stretch if args.max_itl_stretch is not None else 1.5
    free = args.max_num_batched_tokens is not None or stretch > 3.0
    late = w.itl_p99 / w.itl_p50 if w.itl_p50 > 0.0 else 0.0
    if not free or w.running < 2.0 or not _with_prompts(case):
        return None
    if late < LATE:
        return None
    gain = late / LATEST - 1.0
    why = (
        "computes prompts in chunks that lengthen a step by half; leave --max-num-batched-tokens "
        "unset"
    )
    return suspect(
        f"One of a hundred tokens comes {w.itl_p99 * 1e3:.0f} ms behind the one before it, the "
        f"usual one {w.itl_p50 * 1e3:.0f} ms: long prompts share steps with {w.running:.0f} "
        "sequences.",
        case.estimate.prompt_share,
        setting(why, saving(gain), ITL, max_itl_stretch=1.5, max_num_batched_tokens=None),
    )


def long_turns(case: Case) -> Suspect | None:
    """So many passes make a turn that tokens come in bursts, and new requests wait for its end."""
    args, w = case.args, case.window
    turn = args.num_scheduler_steps
    if turn <= MULTI_STEP or case.evidence.offline or w.itl_p99 < LATE * w.itl_p50:
        return None
    late = min(turn / MULTI_STEP, w.itl_p99 / max(1e-9, w.itl_p50))
    gain = max(0.0, late / LATEST - 1.0)
    return suspect(
        f"The scheduler decides once in up to {turn} passes (--num-scheduler-steps): tokens come "
        f"in bursts, up to {w.itl_p99 * 1e3:.0f} ms apart, and new requests wait for a turn's end.",
        min(case.model, 1.0 - MULTI_STEP / turn),
        setting("more passes save nothing", saving(gain), ITL, num_scheduler_steps=MULTI_STEP),
    )


def poor_drafts(case: Case) -> Suspect | None:
    """Most drafts are wrong, and verifying and drafting them delays the steps."""
    w, wanted = case.window, case.config.scheduler.speculative
    if wanted is None or not w.drafted_passes or not w.steps:
        return None
    rows = max(1.0, w.running)
    tokens = 1.0 + w.accepted_tokens / w.drafted_passes
    spent = case.estimate.drafts_share() + w.draft_seconds / w.seconds
    # Without drafts, further passes would compute the accepted ones.
    host = max(0.0, w.seconds * (1.0 - w.share("model", "idle")) - w.draft_seconds) / w.steps
    each = (case.estimate.step_seconds(rows) + host) / rows
    saved = spent - w.accepted_tokens * each / w.seconds
    several = w.draft_tokens >= 2 * w.drafted_passes
    few = several and w.accepted_tokens <= FEW_ACCEPTED * w.draft_tokens
    if few:  # counts prove it, whatever a busy machine makes of the times
        saved = max(saved, WORTH)
    why = "drafts nothing"
    if wanted.num_speculative_tokens_per_batch_size:
        why += "; without fixed numbers per batch size, it drafts only if that pays"
    return suspect(
        f"{w.accepted_tokens / w.draft_tokens:.0%} of {w.draft_tokens:,} drafts "
        f"({wanted.method}) were accepted, {tokens:.2f} tokens per pass with drafts. Drafting and "
        f"verifying takes {spent:.0%} of the time.",
        saved,
        advice("without --speculative-config", why, saved, speculative_config=None),
        kind=Kind.PROVEN if few else Kind.WASTE,
    )


def _with_prompts(case: Case) -> bool:
    """Return whether one of a hundred steps, or more, holds a long prompt beside other rows."""
    w = case.window
    long = sum(count for tokens, count in w.step_sizes if tokens >= LATE * max(1.0, w.running))
    return long >= 0.01 * w.steps


def _between_operations(case: Case, own: float) -> float:
    """Return the share of the window in the model's computation but outside its ops.

    The time of ops that are called one by one includes the call. Their prediction by the machine's
    limits separates the two. `own` is the share of the time in which the threads had a core.
    """
    profile = case.evidence.ops
    outside = 0.0
    if profile is not None and profile.ops and profile.model_seconds:
        inside = sum(op.seconds for op in profile.ops) / profile.model_seconds
        outside = own * case.model * max(0.0, 1.0 - inside)
    if case.config.enforce_eager and case.estimate.measured:
        predicted = case.estimate.model_seconds() / case.window.seconds
        outside = max(outside, own * case.model - predicted)
    return outside


def _handing_over(case: Case) -> float:
    """Return the share of the window that the core waited beyond the worker's model time."""
    w, profile = case.window, case.evidence.ops
    if profile is None or profile.steps < 0.9 * w.steps:  # known only if every step was profiled
        return 0.0
    if case.config.pipeline_parallel_size > 1:  # the profile has all stages' times
        return 0.0
    # A step that began before the window is in its time, but not in the profile.
    edge = case.estimate.step_seconds(max((tokens for tokens, _ in w.step_sizes), default=0.0))
    return max(0.0, case.model - (profile.model_seconds + edge) / w.seconds)


def _multi_step(case: Case, why: str, share: float) -> list[Change]:
    """Return several passes per turn, which leave only one of the turns that take this share."""
    w = case.window
    if case.config.num_scheduler_steps > 1 or w.waiting >= 0.5:
        return []
    rows = max(1.0, w.running) * 1.5
    steps = sum(count for _, count in w.step_sizes)
    # Only steps with one token per sequence can be multi-step.
    decoding = sum(count for tokens, count in w.step_sizes if tokens <= rows) / max(1, steps)
    saved = share * decoding * (1.0 - 1.0 / MULTI_STEP)
    return [setting(why, saved, num_scheduler_steps=MULTI_STEP)]
