"""Time lost in and between steps while there is work."""

from __future__ import annotations

import statistics

from quire.explain.causes.case import MULTI_STEP, Case, Suspect, change, suspect


def dispatch_overhead(case: Case) -> Suspect | None:
    """The host submits work more slowly than the kernels compute it."""
    e, w = case.evidence, case.window
    handing = _handing_over(case)
    between = min(_between_operations(case), case.model - handing)
    host = w.share("schedule", "prepare", "update", "core_send")
    lost = between + handing + host
    changes = []
    if e.config.enforce_eager and between > 0:
        changes.append(
            change(
                "--no-enforce-eager",
                "replays the model's operations from a recorded plan, in one call",
                between,
                enforce_eager=False,
            )
        )
    if e.config.num_scheduler_steps == 1 and w.waiting < 0.5:
        once = (handing + w.share("schedule", "update", "core_send")) * _decoding(case)
        changes.append(
            change(
                f"--num-scheduler-steps {MULTI_STEP}",
                f"asks the scheduler once for {MULTI_STEP} tokens of each sequence",
                once * (1.0 - 1.0 / MULTI_STEP),
                num_scheduler_steps=MULTI_STEP,
            )
        )
    if lost < 0.15:
        return None
    step = w.seconds / max(1, w.steps)
    return suspect(
        "dispatch_overhead",
        f"Of each step's {step * 1e3:.2f} ms the kernels compute {1 - lost:.0%}; "
        f"{between + handing:.0%} goes to dispatching their work, {host:.0%} to scheduling, "
        "preparing and reporting the step.",
        lost,
        changes,
        between_operations=between,
        handing_over=handing,
        host=host,
        step_ms=step * 1e3,
    )


def idle_gaps(case: Case) -> Suspect | None:
    """The core is idle between two steps although requests run."""
    e, w = case.evidence, case.window
    gap = w.share("receive")
    changes = []
    if not e.config.async_scheduling:
        changes.append(
            change(
                "--async-scheduling",
                "schedules the next step while this one is computed",
                min(gap, case.model),
                async_scheduling=True,
            )
        )
    if e.config.num_scheduler_steps == 1 and w.waiting < 0.5:
        changes.append(
            change(
                f"--num-scheduler-steps {MULTI_STEP}",
                f"leaves one gap in place of {MULTI_STEP}",
                gap * _decoding(case) * (1.0 - 1.0 / MULTI_STEP),
                num_scheduler_steps=MULTI_STEP,
            )
        )
    if gap < 0.1:
        return None
    milliseconds = 1e3 * w.parts["receive"] / max(1, w.steps)
    return suspect(
        "idle_gaps",
        f"For {milliseconds:.2f} ms between two steps nothing is computed, {gap:.0%} of the time, "
        f"although {w.running:.1f} sequences run.",
        gap,
        sorted(changes, key=lambda c: -c.estimated_gain),
        gap_ms=milliseconds,
        gap_share=gap,
        running=w.running,
    )


def rank_imbalance(case: Case) -> Suspect | None:
    """One rank of a parallel engine makes the others wait."""
    steps = case.evidence.ranks or _mean_step(case)
    if not steps:
        return None
    means = [statistics.fmean(rank) for rank in zip(*steps, strict=True)]
    slowest = max(range(len(means)), key=means.__getitem__)
    others = [mean for rank, mean in enumerate(means) if rank != slowest]
    longest = sum(max(step) for step in steps)
    if not others or not longest:
        return None
    # Ranks that share the work evenly would all take the mean.
    lost = case.model * (1.0 - sum(map(statistics.fmean, steps)) / longest)
    typical = statistics.median(others)
    cores, ranks = case.evidence.cores, len(means)
    threads = ranks * max(1, cores // ranks)  # of all ranks together
    fields = {} if threads == case.evidence.config.num_threads else {"num_threads": threads}
    return suspect(
        "rank_imbalance",
        f"Rank {slowest} takes {means[slowest] * 1e3:.2f} ms per step and the others "
        f"{typical * 1e3:.2f} ms, so they wait {1 - typical / means[slowest]:.0%} of the model's "
        "time.",
        lost,
        [
            change(
                f"--num-threads {threads}",
                f"gives each of the {ranks} ranks its own share of {cores} cores; other processes "
                "and slower cores may still slow one down",
                lost,
                **fields,
            )
        ],
        slow_rank=slowest,
        slow_ms=means[slowest] * 1e3,
        typical_ms=typical * 1e3,
        num_ranks=ranks,
    )


def _mean_step(case: Case) -> list[list[float]]:
    """Return one step in the form of `Evidence.ranks`."""
    profile = case.evidence.ops
    if profile is None or not profile.steps:
        return []
    busy = [max(0.0, profile.model_seconds - waited) for waited in profile.rank_waits]
    return [[seconds / profile.steps for seconds in busy]] if busy else []


def _between_operations(case: Case) -> float:
    """Return the share of the window in the model's computation but outside its ops.

    The time of ops that are called one by one includes the call. Their prediction by the machine's
    limits separates the two.
    """
    profile = case.evidence.ops
    outside = 0.0
    if profile is not None and profile.ops and profile.model_seconds:
        inside = sum(op.seconds for op in profile.ops) / profile.model_seconds
        outside = case.model * max(0.0, 1.0 - inside)
    if case.evidence.config.enforce_eager and case.estimate.measured:
        predicted = case.estimate.model_seconds() / case.window.seconds
        outside = max(outside, case.model - predicted)
    return outside


def _handing_over(case: Case) -> float:
    """Return the share of the window that the core waited beyond the worker's model time."""
    w, profile = case.window, case.evidence.ops
    if profile is None or profile.steps < 0.9 * w.steps:  # known only if every step was profiled
        return 0.0
    return max(0.0, case.model - profile.model_seconds / w.seconds)


def _decoding(case: Case) -> float:
    """Return the share of steps with one token per sequence; only these can be multi-step."""
    w = case.window
    rows = max(1.0, w.running) * 1.5
    steps = sum(count for _, count in w.step_sizes)
    return sum(count for tokens, count in w.step_sizes if tokens <= rows) / max(1, steps)
