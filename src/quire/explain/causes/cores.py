"""Causes in the cores that the engine has, wants, or shares."""

from __future__ import annotations

from quire.explain.causes.case import WORTH, Case, Kind, Suspect, advice, setting, suspect
from quire.explain.evidence import QUIET
from quire.explain.host import HostUse
from quire.models.memory import parameter_count
from quire.resolve.engine import ONE_THREAD_PARAMETERS

MOSTLY = 0.5
"""Share of the time that the model takes, from which threads matter."""
LIGHT = 0.5
"""CPU weight, relative to the usual one, below which a control group is behind others."""
STOLEN = 0.15
"""CPUs that other virtual machines must take to be a cause of their own."""


def few_threads(case: Case) -> Suspect | None:
    """Cores are idle."""
    e = case.evidence
    threads = e.config.num_threads
    if threads >= e.cores:
        return None
    if threads == 1 and parameter_count(e.config.model) < ONE_THREAD_PARAMETERS:
        return None  # as the engine itself would choose
    ratio = case.estimate.threads_ratio(case.cores_of(threads), case.cores_of(e.cores))
    saved = case.saved(ratio)
    why = "computes on every core that this process may use"
    return suspect(
        f"{threads} of {e.cores} cores compute, and the model takes {case.model:.0%} of the time; "
        f"all of them, beside the other processes, would take {ratio:.2f} times as long.",
        saved,
        setting(why, case.if_quiet(saved), num_threads=e.cores),
        floor=WORTH if case.model > MOSTLY or saved >= WORTH else 0.0,  # the others may end
    )


def too_many_threads(case: Case) -> Suspect | None:
    """More threads than cores: after each op all of them wait for one that has no core."""
    e = case.evidence
    threads = e.config.num_threads
    if threads <= e.cores:
        return None
    # A fault of the settings: it costs more as soon as anything else runs.
    lost = max(case.saved(case.usual(e.cores)), WORTH)
    return suspect(
        f"{threads} threads share {e.cores} core{'s' if e.cores > 1 else ''} (hardware threads of "
        "one core do not count). After each operation all wait for a thread that has no core.",
        lost,
        # No figure: it depends on how the system shares the cores. Seen: +3 to +33 % tokens/s.
        setting("gives each thread its core", 0.0, num_threads=e.cores),
        floor=WORTH,
    )


def affinity(case: Case) -> Suspect | None:
    """The engine may use only some of the machine's CPUs, or its threads share some of them."""
    around = case.around
    if not 0 < around.allowed < around.online:
        return _shared_cpus(case)
    siblings = max(1, around.siblings)
    mine, cores = (max(1, cpus // siblings) for cpus in (around.allowed, around.online))
    saved = case.saved(case.estimate.threads_ratio(min(case.config.num_threads, mine), cores))
    why = f"starts the engine on all {around.online} CPUs; in a container, raise its cpuset"
    return suspect(
        f"The engine may use {around.allowed} of {around.online} CPUs: its affinity (taskset, a "
        "container's cpuset) excludes the others.",
        saved,
        advice(f"taskset --cpu-list 0-{around.online - 1}", why, saved),
    )


def _shared_cpus(case: Case) -> Suspect | None:
    """Return that the threads of one process share CPUs while others are idle."""
    e, host, around = case.evidence, case.host, case.around
    ranks = e.config.tensor_parallel_size * e.config.pipeline_parallel_size
    each = min(e.config.num_threads, e.cores) // ranks
    if host is None or not 0 < around.narrowest < each:
        return None
    idle = max(0.0, host.cpus - host.busy / host.seconds)
    lost = min(case.waited, idle)
    return suspect(
        f"A process of the engine has {each} threads and may use {around.narrowest} of "
        f"{host.cpus} CPUs. The threads waited {case.waited:.0%} of the time for a CPU while "
        f"{idle:.1f} were idle.",
        lost,
        advice(f"taskset -a -p -c 0-{host.cpus - 1} PID", "lets each thread use any CPU", lost),
    )


def cpu_quota(case: Case) -> Suspect | None:
    """A container's CPU limit stops the engine."""
    around = case.around
    if not around.quota or not around.throttled:
        return None
    threads, w, host = case.config.num_threads, case.window, case.host
    lost = min(0.95, around.throttled / (w.seconds * max(1, threads)))
    if host is not None and host.workers:
        # Tokens come in proportion to the time for which the core's thread runs. The core is idle
        # while the event loop is stopped.
        idle = min(w.share("idle"), host.loop_waited / host.seconds)
        lost = min(0.95, around.throttled / w.seconds, case.not_running + idle)
    if around.quota < threads:
        lost = max(lost, WORTH)  # a fault of the settings, even where others take the cores first
    fewer = max(1, int(around.quota))
    changes = []
    if fewer < threads:
        why = f"fits the limit of {around.quota:.1f} CPUs, so that no thread is stopped in a step"
        # No figure: fewer threads should gain nothing under the same limit, but gained 82 %.
        changes.append(setting(why, 0.0, num_threads=fewer))
    raised = f"a CPU limit above {around.quota:.1f} (docker --cpus, resources.limits.cpu)"
    changes.append(advice(raised, "lets the threads run on", lost))
    return suspect(
        f"The container's limit of {around.quota:.1f} CPUs stopped the engine's threads for "
        f"{around.throttled:.1f} s of {case.window.seconds:.1f} s, which costs {lost:.0%}.",
        lost,
        *changes,
        floor=min(WORTH, lost),
    )


def low_priority(case: Case) -> Suspect | None:
    """The engine's processes have a low priority: others get the cores first."""
    around = case.around
    if case.evidence.others < QUIET:
        return None  # nobody is before it
    if around.policy:
        how, flag = f"has the scheduling policy {around.policy}", "chrt --other --pid 0 PID"
    elif around.nice > 0:
        how, flag = f"runs with nice {around.nice}", "renice -n 0 -p PID"
    elif around.weight < LIGHT:
        how = f"is in a control group with {around.weight:.0%} of the usual CPU weight"
        flag = "the usual cpu.weight (docker --cpu-shares, resources.requests.cpu)"
    else:
        return None
    lost = case.lost_to_others
    return suspect(
        f"The engine {how}, so other processes get the cores first: its threads waited "
        f"{case.waited:.0%} of the time for one.",
        lost,
        advice(flag, "gives it an equal part of the cores", lost / 2),
    )


def busy_neighbour(case: Case) -> Suspect | None:
    """Other processes use the kernels' cores."""
    e, host = case.evidence, case.host
    if host is None or e.others - host.steal / host.seconds < QUIET:
        return None
    threads, waited = e.config.num_threads, case.waited
    why = (
        "keep it, and give the other processes their own cores (taskset, a container's limit), "
        "or use fewer threads; no other flag helps"
    )
    saved = case.lost_to_others
    return suspect(
        f"Other processes keep {host.others:.1f} of {host.cpus} CPUs busy{_named(host)}, and the "
        f"engine's threads waited {waited:.0%} of the time for one.",
        saved if case.window.steps else waited,
        advice(f"--num-threads {threads}", why, saved),
        kind=Kind.NEIGHBOUR,
    )


def _named(host: HostUse) -> str:
    """Return the busiest neighbours in brackets."""
    named = [
        f"{n.name} {n.cpus:.1f} (pid {n.pid}{', a client' if n.client else ''})"
        for n in host.neighbours
    ]
    return f", most {', '.join(named)}" if named else ""


def stolen_cpu(case: Case) -> Suspect | None:
    """Other virtual machines use the CPUs."""
    host = case.host
    steal = 0.0 if host is None else host.steal / host.seconds
    if host is None or steal < STOLEN:
        return None
    kept = max(0.05, 1.0 - steal / host.cpus)
    threads = case.config.num_threads
    saved = case.saved(case.estimate.threads_ratio(threads * kept, threads))
    why = "the host gives them to other virtual machines: no flag can change that"
    return suspect(
        f"Other virtual machines took {steal:.1f} of {host.cpus} CPUs.",
        saved,
        advice("a machine whose CPUs are not shared", why, saved),
        kind=Kind.NEIGHBOUR,
    )
