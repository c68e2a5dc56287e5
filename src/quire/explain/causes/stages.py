"""Causes in pipeline stages and replicas."""

from __future__ import annotations

import statistics

from quire.explain.causes.case import Case, Kind, Suspect, advice, suspect

SHARED = 0.2
"""CPUs that other processes use, from which stages wait for them."""
UNEVEN = 0.15
"""Share of the time that even stages or replicas would save, from which one of them is slow."""
SLOW = 0.15
"""Share of the time that rows are between machines, from which a link is slow."""


def slow_stage(case: Case) -> Suspect | None:
    """One pipeline stage is busy or without a core for longer than the others, which wait for it.

    Only the stages on this machine are seen.
    """
    config, host = case.config, case.host
    ranks, most = config.tensor_parallel_size, config.pipeline_parallel_size
    count = min(most, len(host.workers) // ranks) if host is not None else 0
    if host is None or count < 2:
        return None
    stages = [host.workers[ranks * n : ranks * (n + 1)] for n in range(count)]
    # While others use the cores, a stage's wait for one is theirs; see `busy_neighbour`.
    own = 0.0 if host.others >= SHARED else 1.0
    times = [max(w.ran + own * w.waited for w in stage) / host.seconds for stage in stages]
    slow = max(range(count), key=times.__getitem__)
    others = statistics.fmean(t for n, t in enumerate(times) if n != slow)
    # Even stages would all take the mean. If none is busy all the time, that saves little. It is
    # judged on the time that others leave.
    lost = (times[slow] - statistics.fmean(times)) / (1.0 - (1.0 - own) * case.waited)
    if lost < UNEVEN:
        return None
    worst = max(stages[slow], key=lambda w: w.ran + w.waited)
    if own * worst.waited > worst.ran / 2:
        flag = f"cores of its own for stage {slow} (taskset of process {worst.pid})"
        why = "lets it compute when its rows have come"
    else:
        flag, why = "VLLM_PP_LAYER_PARTITION", f"gives stage {slow} fewer layers"
    return suspect(
        f"Stage {slow} (process {worst.pid}) computes or waits for a core {times[slow]:.0%} of the "
        f"time, {worst.waited / host.seconds:.0%} without one; the others {others:.0%}, and then "
        "they wait for it.",
        lost,
        advice(flag, why, lost),
        kind=Kind.WASTE,
    )


def slow_replica(case: Case) -> Suspect | None:
    """One replica waits for a core for more of its time than the others."""
    config, host = case.config, case.host
    count = len(case.args.replicas)
    ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    if host is None or count < 2 or len(host.workers) < count * ranks:
        return None
    replicas = [host.workers[ranks * n : ranks * (n + 1)] for n in range(count)]
    had = [min(w.ran / max(1e-9, w.ran + w.waited) for w in replica) for replica in replicas]
    slow = min(range(count), key=had.__getitem__)
    others = statistics.fmean(share for n, share in enumerate(had) if n != slow)
    worst = max(replicas[slow], key=lambda w: w.waited)
    lost = case.model * (others - had[slow]) / count
    flag = f"cores of its own for replica {slow} (taskset of process {worst.pid})"
    if lost < UNEVEN:
        return None
    return suspect(
        f"Replica {slow} (process {worst.pid}) has a core for {had[slow]:.0%} of the time in which "
        f"it wants one, and the others for {others:.0%}: something else runs on its cores.",
        lost,
        advice(flag, "lets it compute as fast as the others", lost),
        kind=Kind.WASTE,
    )


def slow_link(case: Case) -> Suspect | None:
    """Steps wait for rows, or their outcomes, that are between two machines.

    While one step is on its way, others are computed: as many are in flight as there are stages, if
    there are requests for them. Only what they do not fill is lost.
    """
    stages = case.window.stages
    steps = max((stage.hops for stage in stages), default=0)
    if not steps:
        return None
    busy = [stage.busy / steps for stage in stages]
    ways = [stage.hop_seconds / steps for stage in stages]
    flights = max(1.0, min(len(stages), case.window.running))
    together = max(flights * max(busy), sum(busy))
    lost = 1.0 - together / max(together, sum(busy) + sum(ways), 1e-9)
    lost *= 1.0 - case.window.share("idle")
    if lost < SLOW:
        return None
    slow = max(range(len(ways)), key=ways.__getitem__)
    link, per_node = stages[slow], case.config.cluster.nnodes / len(stages)
    nodes = int(slow * per_node), int((slow + 1) * per_node)
    why, rate = "makes them come sooner", link.hop_bytes / max(link.hop_seconds, 1e-9) / 1e6
    return suspect(
        f"Rows of a step take {1e3 * ways[slow]:.1f} ms from node {nodes[0]} to node {nodes[1]}, "
        f"with a receipt back: {link.hop_bytes / steps / 1e3:.1f} KB, {rate:.1f} MB/s. All stages "
        f"together compute a step in {1e3 * sum(busy):.1f} ms.",
        lost,
        advice(f"a faster network between node {nodes[0]} and node {nodes[1]}", why, lost),
        kind=Kind.WASTE,
    )
